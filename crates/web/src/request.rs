//! Tables of the requests of an API: the routers and the reference are made of them.

use axum::Router;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter};

/// A request that an API with the state `S` takes.
pub struct Request<S> {
    /// Method.
    pub method: Method,
    /// Path; a name in braces stands for any. Behind `?` stand its parameters.
    pub path: &'static str,
    /// Example of a body; empty where there is none.
    pub body: &'static str,
    /// Answer or effect, as Markdown.
    pub effect: &'static str,
    pub(crate) handler: fn(MethodFilter) -> MethodRouter<S>,
}

/// A request without a body that only reads.
pub(crate) const fn read<S>(
    path: &'static str,
    effect: &'static str,
    handler: fn(MethodFilter) -> MethodRouter<S>,
) -> Request<S> {
    Request { method: Method::GET, path, body: "", effect, handler }
}

/// The router of these requests.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(requests: &'static [Request<S>]) -> Router<S> {
    requests.iter().fold(Router::new(), |router, Request { method, path, handler, .. }| {
        let method = MethodFilter::try_from(method.clone()).expect("a method of the standard");
        router.route(path.split('?').next().unwrap_or(path), handler(method))
    })
}
