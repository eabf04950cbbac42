//! The status page: one page, one script, one style sheet, all from the program itself.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::serve::Manager;

/// The page and what it loads. It shows `/api/v1/state`, which it fetches every second.
pub(super) fn router() -> Router<Arc<Manager>> {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", include_str!("page/index.html"))))
        .route("/status.js", get(async || file("text/javascript; charset=utf-8", include_str!("page/status.js"))))
        .route("/status.css", get(async || file("text/css; charset=utf-8", include_str!("page/status.css"))))
}

fn file(kind: &'static str, content: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], content)
}
