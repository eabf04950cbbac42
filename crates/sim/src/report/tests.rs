use super::*;

/// Text that breaks a page which inserts it as markup.
const HOSTILE: &str = "</script><script>alert(\"x\")</script> & <b> \u{2028} 'q'";

fn page() -> Page {
    let series = |name: &str, style| Series::new(name, style, [(0.0, 1.0), (1.0, f64::NAN), (2.0, 1_234_567.891)]);
    let plot = Plot {
        title: "Latency".into(),
        x: Axis::linear("time, s"),
        y: Axis::log("latency, ms"),
        series: vec![series(HOSTILE, Style::Line), series("b", Style::Steps)],
        marks: vec![Mark { at: Decimal(1.0), label: HOSTILE.into() }],
        link: "time".into(),
        ..Plot::default()
    };
    Page {
        title: HOSTILE.into(),
        intro: vec![HOSTILE.into()],
        facts: vec![("seed".into(), "7".into())],
        checks: vec![Check { what: HOSTILE.into(), measured: "3".into(), met: false, note: String::new() }],
        sections: vec![Section {
            title: "Results".into(),
            text: vec!["a sentence".into()],
            blocks: vec![
                Block::Plot(plot),
                Block::Table(Table {
                    title: String::new(),
                    columns: vec![HOSTILE.into(), "n".into()],
                    rows: vec![vec![Cell::Text(HOSTILE.into()), Cell::Interval(Decimal(1.5), Decimal(f64::NAN))]],
                }),
                Block::Listing { title: "scenario".into(), text: HOSTILE.into() },
            ],
        }],
    }
}

/// The JSON in the data element of a page's HTML.
fn data(html: &str) -> serde_json::Value {
    let (_, after) = html.split_once("<script type=\"application/json\" id=\"data\">").expect("the data element");
    let (data, _) = after.split_once("</script>").expect("its end");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn the_data_in_the_page_is_the_data_given() {
    let page = page();
    let data = data(&page.html());
    assert_eq!(data, serde_json::to_value(&page).unwrap());
    assert_eq!(data["title"], HOSTILE);
    let plot = &data["sections"][0]["blocks"][0];
    assert_eq!(plot["series"][0]["points"], serde_json::json!([[0, 1], [1, null], [2, 1_234_570]]));
    assert_eq!((plot["y"]["scale"].as_str(), plot["series"][1]["style"].as_str()), (Some("log"), Some("steps")));
}

#[test]
fn no_text_becomes_markup() {
    let html = page().html();
    let [common, own] = ["class Axes {", "class PlotView extends Axes {"].map(|class| html.find(class).expect(class));
    assert!(common < own, "a script uses what it declares later");
    // The skeleton has three script elements, and no text adds one.
    assert_eq!(html.matches("<script").count(), 3);
    assert_eq!(html.matches("</script>").count(), 3);
    assert!(!html.contains("<b>"), "an element of a text");
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    let html = page().html();
    for address in ["http:", "https:", "//cdn", "@import", "url(", " src=", "<link"] {
        assert!(!html.contains(address), "{address} in the page");
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn numbers_are_short() {
    for (value, text) in [
        (0.0, "0"),
        (1.0, "1"),
        (0.012_345, "0.01235"),
        (1.234_56, "1.235"),
        (-12.5, "-12.5"),
        (123.449, "123.4"),
        (99_999.6, "100000"),
        (1e-9, "1.000e-9"),
        (f64::NAN, "–"),
    ] {
        assert_eq!(short(value), text);
    }
}
