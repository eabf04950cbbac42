//! Generated lists of the metrics, from the tables that also answer scrapes.

use evenkeel_web::Description;

use super::{Block, linked, phrase};

const PAGE: &str = "docs/guide/monitoring.md";
/// Links in the lists: name of a metric, and the page that explains the metric further.
const PAGES: [(&str, &str); 1] = [("evenkeel_refused_clients_total", "security.md#who-may-open-what")];

/// A metric's name for a list. A histogram is marked as one; other types show in the name itself.
fn name(metric: &Description) -> String {
    let name = linked(&metric.name, &metric.name, &PAGES);
    if metric.kind == "histogram" { format!("{name} (histogram)") } else { name }
}

/// A list of `metrics`, grouped by their labels. A metric whose name begins with `prefix` is listed by name alone if `known` has
/// it with the same text and `evenkeel_` in place of `prefix`.
fn list(metrics: &[Description], known: &[Description], prefix: &str) -> String {
    let mut text = String::new();
    for group in metrics.chunk_by(|a, b| a.labels == b.labels) {
        let labels: Vec<String> = group[0].labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "No labels".to_owned() } else { format!("Labels {}", labels.join(", ")) };
        text += &format!("{labels}:\n\n");
        let is_known = |metric: &&Description| {
            let other = metric.name.replacen(prefix, "evenkeel_", 1);
            known.iter().any(|known| known.name == other && known.help == metric.help)
        };
        let (old, new): (Vec<&Description>, Vec<&Description>) = group.iter().partition(is_known);
        for metric in new {
            text += &format!("- {}: {}\n", name(metric), phrase(metric.help));
        }
        if !old.is_empty() {
            let names: Vec<String> = old.into_iter().map(name).collect();
            text += &format!("- as in the server's list: {}\n", names.join(", "));
        }
        text += "\n";
    }
    text
}

pub(super) fn blocks() -> Vec<Block> {
    let [server, agent] = evenkeel_web::metrics();
    let block = |name, text: String| Block { page: PAGE, name, text: text.trim_end().into() };
    vec![
        block("metrics of the server", list(&server, &[], "")),
        block("metrics of the agent", list(&agent, &server, "evenkeel_guard_")),
    ]
}

#[test]
fn metrics_stand_below_their_labels_and_types_show_in_names() {
    let metric = |name: &str, kind, labels, help| Description { name: name.into(), kind, labels, help };
    let server = [
        metric("evenkeel_a_seconds", "histogram", &["pool", "tenant"][..], "Arrival to dispatch."),
        metric("evenkeel_b_total", "counter", &[], "Bs."),
    ];
    let text = "Labels `pool`, `tenant`:\n\n- `evenkeel_a_seconds` (histogram): arrival to dispatch\n\n\
                No labels:\n\n- `evenkeel_b_total`: bs\n\n";
    assert_eq!(list(&server, &[], ""), text);
    let agent = [
        metric("evenkeel_guard_b_total", "counter", &[][..], "Bs."),
        metric("evenkeel_guard_c", "gauge", &[], "1 while it is."),
    ];
    let text = "No labels:\n\n- `evenkeel_guard_c`: 1 while it is\n\
                - as in the server's list: `evenkeel_guard_b_total`\n\n";
    assert_eq!(list(&agent, &server, "evenkeel_guard_"), text);
    for metric in evenkeel_web::metrics().concat() {
        assert_eq!(metric.name.ends_with("_total"), metric.kind == "counter", "{}", metric.name);
        assert!(metric.help.ends_with('.'), "{}: {}", metric.name, metric.help);
    }
}
