//! Tables of the requests that a server takes, made of the tables of its routers.

use evenkeel_web::serve::{CHANGES, READS, Request};

use super::{Block, linked, table};

const PAGE: &str = "docs/reference/api.md";
/// Where answers are explained further.
const PAGES: [(&str, &str); 1] = [("/metrics", "../guide/monitoring.md")];

fn row(request: &Request) -> [String; 3] {
    let body = if request.body.is_empty() { String::new() } else { format!("`{}`", request.body) };
    let name = format!("{} {}", request.method, request.path);
    [linked(&name, request.path, &PAGES), body, request.effect.to_owned()]
}

pub(super) fn blocks() -> Vec<Block> {
    let reads = table(&["request", "answer"], READS.iter().map(row).map(|[name, _, effect]| vec![name, effect]));
    let changes = table(&["request", "body", "effect"], CHANGES.iter().map(row).map(Vec::from));
    let block = |name, text: String| Block { page: PAGE, name, text: text.trim_end().into() };
    vec![block("reads", reads), block("changes", changes)]
}
