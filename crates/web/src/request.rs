//! Tables of the requests of an API, from which the routers and the reference pages are made.

use axum::Router;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Method;
use axum::http::request::Parts;
use axum::routing::{MethodFilter, MethodRouter};
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// A kind of request that an API with the state `S` answers.
pub struct Request<S> {
    /// HTTP method of the request.
    pub method: Method,
    /// Path of the request; a word in braces stands for any name. Parameters follow after `?`.
    pub path: &'static str,
    /// Example of the request's body; empty if the request has no body.
    pub body: &'static str,
    /// Answer or effect of the request, as Markdown.
    pub effect: &'static str,
    pub(crate) handler: fn(MethodFilter) -> MethodRouter<S>,
}

/// A request that only reads, without a body.
pub(crate) const fn read<S>(
    path: &'static str,
    effect: &'static str,
    handler: fn(MethodFilter) -> MethodRouter<S>,
) -> Request<S> {
    Request { method: Method::GET, path, body: "", effect, handler }
}

/// A request that makes a change. `body`: an example of its body; empty if it has none.
pub(crate) const fn write<S>(
    method: Method,
    path: &'static str,
    body: &'static str,
    effect: &'static str,
    handler: fn(MethodFilter) -> MethodRouter<S>,
) -> Request<S> {
    Request { method, path, body, effect, handler }
}

/// The parameters of a request: those after `?` in its URL.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let asked = Query::from_request_parts(parts, state).await;
        let cure = "see docs/reference/api.md for the parameters";
        asked.map(|Query(asked)| Self(asked)).map_err(|why| invalid(why.body_text(), cure))
    }
}

/// The name in the path of a request, such as that of a volume.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let named = Path::from_request_parts(parts, state).await;
        let cure = "`evenkeel state` lists pools, tenants and volumes";
        named.map(|Path(name)| Self(name)).map_err(|why| invalid(why.body_text(), cure))
    }
}

fn invalid(why: String, cure: &str) -> Refusal {
    Refusal::new(400, "invalid_request", why, cure)
}

/// The router of these requests.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(requests: &'static [Request<S>]) -> Router<S> {
    requests.iter().fold(Router::new(), |router, Request { method, path, handler, .. }| {
        let method = MethodFilter::try_from(method.clone()).expect("a method of the standard");
        router.route(path.split('?').next().unwrap_or(path), handler(method))
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Wanted {
        count: usize,
    }

    #[tokio::test]
    async fn parameters_that_cannot_be_read_are_refused_as_everything_else() {
        let asked = async |uri: &str| {
            let (mut parts, ()) = axum::http::Request::get(uri).body(()).unwrap().into_parts();
            Asked::<Wanted>::from_request_parts(&mut parts, &()).await.map(|Asked(wanted)| wanted.count)
        };
        assert_eq!(asked("/decisions?count=5").await.ok(), Some(5));
        let refusal = asked("/decisions?count=many").await.unwrap_err();
        assert_eq!((refusal.status, refusal.kind), (400, "invalid_request"), "{refusal:?}");
        assert!(refusal.message.contains("count") && refusal.cure.contains("api.md"), "{refusal:?}");
    }
}
