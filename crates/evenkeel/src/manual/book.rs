//! The pages of the manual inside the program: their sections, the glossary's terms and the metrics.

/// A page of the manual.
pub(crate) struct Page {
    /// Its path below `docs/`, with which the package installs it below [`FOLDER`], or `README.md`.
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

/// Where the package installs the pages.
pub(crate) const FOLDER: &str = "/usr/share/doc/evenkeel";
/// The page whose tables define the terms.
pub(crate) const GLOSSARY: &str = "glossary.md";
/// The page that lists the metrics.
pub(crate) const METRICS: &str = "guide/monitoring.md";

macro_rules! pages {
    ($($path:literal,)*) => {
        [
            $(Page { path: $path, text: include_str!(concat!("../../../../docs/", $path)) },)*
            Page { path: "README.md", text: include_str!("../../../../README.md") },
        ]
    };
}

/// All pages but the results of runs.
pub(crate) const PAGES: &[Page] = &pages![
    "glossary.md",
    "ARCHITECTURE.md",
    "algorithms/accurate-throughput.md",
    "algorithms/admission-baselines.md",
    "algorithms/elastic.md",
    "algorithms/mclock.md",
    "algorithms/models.md",
    "algorithms/packet-delay.md",
    "algorithms/placement.md",
    "algorithms/response-time.md",
    "algorithms/simulator.md",
    "algorithms/slots.md",
    "algorithms/slowfast-codel.md",
    "guide/ceph.md",
    "guide/comparison.md",
    "guide/dashboard.md",
    "guide/demo.md",
    "guide/guard.md",
    "guide/install.md",
    "guide/load.md",
    "guide/monitoring.md",
    "guide/reproduce.md",
    "guide/security.md",
    "guide/serve.md",
    "guide/sim.md",
    "guide/tls.md",
    "guide/top.md",
    "guide/troubleshooting.md",
    "guide/tutorial-ceph.md",
    "guide/tutorial-iscsi.md",
    "guide/tutorial-lvm.md",
    "guide/tutorial-server.md",
    "guide/workloads.md",
    "reference/api.md",
    "reference/check.md",
    "reference/cli.md",
    "reference/config.md",
    "reference/cluster.md",
    "reference/failures.md",
    "reference/performance.md",
    "reference/protocol.md",
    "testing.md",
];

/// A part of a page below one heading.
pub(crate) struct Section {
    pub(crate) page: &'static str,
    /// The page's first heading.
    pub(crate) title: &'static str,
    pub(crate) heading: &'static str,
    lines: Vec<Line>,
}

/// A line of a page.
enum Line {
    Prose(&'static str),
    Code(&'static str),
}

impl Section {
    /// The heading's name in links.
    pub(crate) fn anchor(&self) -> String {
        let kept = self.heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    }

    /// True for the part of a page before its second heading.
    pub(crate) fn is_first(&self) -> bool {
        self.heading == self.title
    }

    /// The sentences and rows of tables, without markup.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = String> + '_ {
        let prose = self.lines.iter().filter_map(|line| if let Line::Prose(line) = line { Some(*line) } else { None });
        prose.flat_map(|line| match cells(line) {
            Some(cells) if cells.iter().all(|cell| cell.is_empty() || cell.starts_with("--")) => Vec::new(),
            Some(cells) => {
                let cells: Vec<String> = cells.into_iter().map(plain).filter(|cell| !cell.is_empty()).collect();
                vec![cells.join(": ")]
            }
            None => divided(plain(line.trim().trim_start_matches("- "))),
        })
    }

    /// The lines of code.
    pub(crate) fn code(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.lines.iter().filter_map(|line| if let Line::Code(line) = line { Some(line.trim()) } else { None })
    }
}

/// The text divided behind each full stop that another sentence follows.
fn divided(text: String) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for part in text.split_inclusive(". ") {
        match sentences.last_mut() {
            Some(last) if !part.starts_with(|c: char| c.is_uppercase() || c == '`') => last.push_str(part),
            _ => sentences.push(part.to_owned()),
        }
    }
    sentences.iter().map(|sentence| sentence.trim().to_owned()).filter(|sentence| !sentence.is_empty()).collect()
}

/// The sections of a page, in order.
pub(crate) fn sections(page: &Page) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut code = false;
    for line in page.text.lines() {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        let heading = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#') && !code);
        match (heading, sections.last_mut()) {
            (Some(heading), _) => {
                let title = sections.first().map_or(heading, |first| first.title);
                sections.push(Section { page: page.path, title, heading, lines: Vec::new() });
            }
            (None, Some(section)) if !fence && !line.starts_with("<!--") => {
                section.lines.push(if code { Line::Code(line) } else { Line::Prose(line) });
            }
            _ => {}
        }
    }
    sections
}

/// A row of the glossary.
pub(crate) struct Term {
    /// Words with one meaning.
    pub(crate) names: Vec<String>,
    pub(crate) meaning: String,
    /// Pages below `docs/` that the row links to, with the heading behind `#`.
    pub(crate) links: Vec<&'static str>,
    /// Keys and metrics of its last cell.
    pub(crate) codes: Vec<&'static str>,
}

/// The rows of the glossary.
pub(crate) fn terms() -> Vec<Term> {
    let glossary = PAGES.iter().find(|page| page.path == GLOSSARY).map_or("", |page| page.text);
    let rows = glossary.lines().filter_map(cells);
    let term = |cells: Vec<&'static str>| {
        let [name, meaning, codes @ ..] = cells.as_slice() else { return None };
        if name.starts_with("--") || ["term", "known as"].contains(name) {
            return None;
        }
        let alone = |name: &str| name.split(" (").next().unwrap_or(name).to_owned();
        Some(Term {
            names: plain(name).split(", ").map(alone).collect(),
            meaning: plain(meaning),
            links: links(name).chain(links(meaning)).collect(),
            codes: codes.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect(),
        })
    };
    rows.filter_map(term).collect()
}

/// A metric and its meaning.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) meaning: String,
}

/// The metrics that the page about them lists, each once; one without a meaning of its own has that of its group.
pub(crate) fn metrics() -> Vec<Metric> {
    let page = PAGES.iter().find(|page| page.path == METRICS).map_or("", |page| page.text);
    let (mut found, mut group): (Vec<Metric>, _) = (Vec::new(), String::new());
    let listed = page.lines().filter(|line| line.starts_with(['-', '|', '*']));
    for line in listed {
        if let Some((title, _)) = line.strip_prefix("**").and_then(|rest| rest.split_once(':')) {
            group = plain(title);
        }
        let pieces: Vec<&'static str> = line.split('`').collect();
        for (at, name) in pieces.iter().enumerate().skip(1).step_by(2) {
            if name.starts_with("evenkeel_") && found.iter().all(|metric| metric.name != *name) {
                let meaning = match cells(line) {
                    Some(cells) => cells.last().map_or_else(String::new, |cell| plain(cell)),
                    None => meaning(&pieces[at + 1..]),
                };
                found.push(Metric { name, meaning: if meaning.is_empty() { group.clone() } else { meaning } });
            }
        }
    }
    found
}

/// The meaning of a metric, from what follows its name in a list: in parentheses, or behind the colon after the last name.
fn meaning(following: &[&str]) -> String {
    let own = following.first().and_then(|text| text.strip_prefix(" (")).and_then(|text| text.split(')').next());
    if let Some(own) = own {
        return own.to_owned();
    }
    let Some(end) = following.iter().step_by(2).position(|text| text.contains([':', ';'])) else {
        return String::new();
    };
    let text = following[2 * end..].join("`");
    let (between, text) = text.split_once(": ").unwrap_or((&text, ""));
    let text = if between.contains(';') { "" } else { text };
    plain(text.split("; `evenkeel_").next().unwrap_or(text))
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

/// Where the links of a text lead to.
fn links<'a>(text: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|target| !target.contains("://"))
}

/// Markdown without its links.
pub(super) fn unlinked(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((label, tail)) = rest.split_once("](") {
        let (Some(open), Some(close)) = (label.rfind('['), tail.find(')')) else { break };
        plain += label[..open].trim_end_matches('!');
        plain += &label[open + 1..];
        rest = &tail[close + 1..];
    }
    (plain + rest).replace("[`", "`").replace("`]", "`")
}

/// Markdown without its marks.
fn plain(text: &str) -> String {
    unlinked(text).replace(['`'], "").replace("**", "")
}
