//! The dashboard: a page, its style sheet and its modules, all contained in the program.
//!
//! The page shows the state that `/api/v1` of a server or an agent serves, which it requests every second, and the history. The
//! files need no build step, and load no files from other servers. Browsers cache the files and revalidate them by entity tags.

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_policy::PLOT;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the dashboard that is served.
struct File {
    path: &'static str,
    kind: &'static str,
    /// Its content in parts.
    parts: &'static [&'static str],
}

/// The [`File`] with the content of a file of the source folder `dashboard`.
macro_rules! file {
    ($path:expr, $kind:expr, $name:literal) => {
        File { path: $path, kind: $kind, parts: &[include_str!(concat!("dashboard/", $name))] }
    };
    ($name:literal) => {
        file!(concat!("/dashboard/", $name), JAVASCRIPT, $name)
    };
}

const FILES: &[File] = &[
    file!("/", HTML, "index.html"),
    file!("/dashboard/style.css", CSS, "style.css"),
    file!("/dashboard/icon.svg", "image/svg+xml", "icon.svg"),
    file!("theme.js"),
    file!("main.js"),
    File { path: "/dashboard/dom.js", kind: JAVASCRIPT, parts: &[PLOT, include_str!("dashboard/dom.js")] },
    file!("figures.js"),
    file!("feed.js"),
    file!("decisions.js"),
    file!("path.js"),
    file!("plots.js"),
    file!("timeline.js"),
    file!("table.js"),
    file!("past.js"),
    file!("when.js"),
    file!("panels.js"),
];

/// The routes of the dashboard's page and of the files that the page loads.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        let content = Bytes::from(file.parts.concat());
        let tag = tag(&content);
        router.route(file.path, get(async move |asked: HeaderMap| answer(file.kind, content, &tag, &asked)))
    })
}

fn answer(kind: &'static str, content: Bytes, tag: &HeaderValue, asked: &HeaderMap) -> Response {
    let known = asked.get_all(header::IF_NONE_MATCH).iter().any(|tags| tags == tag);
    // `no-cache`: kept, and asked for again each time; a new version of the program has a new page at once.
    let headers = [
        (header::ETAG, tag.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
    ];
    if known { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, content).into_response() }
}

/// The entity tag of a file's content: the content's FNV-1a hash, quoted. The hash need not resist forgery.
fn tag(content: &[u8]) -> HeaderValue {
    let hash = content
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    HeaderValue::from_str(&format!("\"{hash:016x}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_and_banner_tell_critical_troubles_from_others() {
        let (main, panels) = (include_str!("dashboard/main.js"), include_str!("dashboard/panels.js"));
        assert!(main.contains("[[critical, \"critical\"], [missed, \"missed\"]]"), "the title has both");
        let mut of_level = panels.lines().filter(|line| line.contains("level === \"critical\" ?"));
        assert!(of_level.next().is_some_and(|line| line.contains("CRITICAL: ")), "the banner has the word");
        assert!(of_level.next().is_some_and(|line| line.contains("\"WARNING\"")), "past failures do not fail now");
    }

    #[test]
    fn the_names_that_dom_exports_are_declared() {
        let (_, list) = include_str!("dashboard/dom.js").split_once("\nexport {").expect("a list");
        let (names, _) = list.split_once('}').expect("its end");
        for name in names.split(',').map(str::trim) {
            let is_declared = ["const", "class"].iter().any(|kind| PLOT.contains(&format!("\n{kind} {name} ")));
            assert!(is_declared, "{name}");
        }
    }
}
