//! The manual as a part of the program: its pages, their sections, the glossary's terms, and the metrics.

/// A page of the manual.
pub(crate) struct Page {
    /// Path of the page, relative to `docs/` in the sources and to [`FOLDER`] where installed; or `README.md`.
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

/// Folder in which the Debian package installs the manual's pages.
pub(crate) const FOLDER: &str = "/usr/share/doc/evenkeel";
/// The page whose tables define the terms: the glossary.
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

/// All pages of the manual: those of `docs/` except `docs/results/`, and the README.
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
    "guide/flight-recorder.md",
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

/// A part of a page, from one heading to the next.
pub(crate) struct Section {
    pub(crate) page: &'static str,
    /// Text of the first heading on the section's page.
    pub(crate) title: &'static str,
    pub(crate) heading: &'static str,
    lines: Vec<Line>,
}

/// A line of a page's Markdown, by kind.
enum Line {
    Heading(&'static str),
    Prose(&'static str),
    Code(&'static str),
    /// A row of a table, also its head.
    Row(&'static str),
}

/// The lines of a Markdown text by kind, without fences around code, comments, and the rules below heads of tables.
fn lines(text: &'static str) -> Vec<Line> {
    let is_rule = |line: &str| line.contains("--") && line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
    let (mut found, mut lines) = (Vec::new(), text.lines().peekable());
    let (mut code, mut table) = (false, false);
    while let Some(line) = lines.next() {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        table = !code && line.contains('|') && (table || lines.peek().is_some_and(|next| is_rule(next)));
        let heading = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'));
        match heading {
            _ if fence || line.starts_with("<!--") || table && is_rule(line) => {}
            _ if code => found.push(Line::Code(line)),
            _ if table => found.push(Line::Row(line)),
            Some(heading) => found.push(Line::Heading(heading)),
            None => found.push(Line::Prose(line)),
        }
    }
    found
}

impl Section {
    /// Anchor of the section: the text after `#` in links to its heading.
    pub(crate) fn anchor(&self) -> String {
        let kept = self.heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    }

    /// True for the first section of its page.
    pub(crate) fn is_first(&self) -> bool {
        self.heading == self.title
    }

    /// The section's sentences, and the rows of its tables as sentences, without markup. Headings and code are left out.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = String> + '_ {
        self.lines.iter().flat_map(|line| match line {
            Line::Prose(line) => divided(plain(line.trim().trim_start_matches("- "))),
            Line::Row(line) => {
                let cells: Vec<String> = cells(line).into_iter().map(plain).filter(|cell| !cell.is_empty()).collect();
                let (first, others) = cells.split_first().map_or(("", &[][..]), |(first, others)| (first, others));
                let gap = if others.is_empty() { "" } else { ": " };
                vec![format!("{first}{gap}{}", others.join("; "))]
            }
            Line::Heading(_) | Line::Code(_) => Vec::new(),
        })
    }

    /// The lines in the section's code blocks, without indentation.
    pub(crate) fn code(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.lines.iter().filter_map(|line| if let Line::Code(line) = line { Some(line.trim()) } else { None })
    }
}

/// The sentences of `text`. A sentence ends at a full stop and blank before a capital letter or backtick.
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
    for line in lines(page.text) {
        match (line, sections.last_mut()) {
            (Line::Heading(heading), first) => {
                let title = first.map_or(heading, |section| section.title);
                sections.push(Section { page: page.path, title, heading, lines: Vec::new() });
            }
            (line, Some(section)) => section.lines.push(line),
            (_, None) => {}
        }
    }
    sections
}

/// A row of the glossary.
pub(crate) struct Term {
    /// The words that the row defines; all have the same meaning.
    pub(crate) names: Vec<String>,
    pub(crate) meaning: String,
    /// Pages to which the row links, as paths relative to `docs/`, with the heading's anchor after `#` if there is one.
    pub(crate) links: Vec<&'static str>,
    /// Keys and metrics, from the row's cells behind name and meaning.
    pub(crate) codes: Vec<&'static str>,
}

/// The terms that the glossary defines.
pub(crate) fn terms() -> Vec<Term> {
    let glossary = PAGES.iter().find(|page| page.path == GLOSSARY).map_or("", |page| page.text);
    let rows = lines(glossary)
        .into_iter()
        .filter_map(|line| if let Line::Row(line) = line { Some(cells(line)) } else { None });
    let term = |cells: Vec<&'static str>| {
        let [name, meaning, codes @ ..] = cells.as_slice() else { return None };
        if ["term", "known as"].contains(name) {
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

/// Descriptions of all metrics of server and agent.
pub(crate) fn metrics() -> Vec<evenkeel_web::Description> {
    evenkeel_web::metrics().concat()
}

/// The cells of a table's row, which may have bars at its ends. An escaped bar (`\|`) belongs to its cell.
fn cells(line: &str) -> Vec<&str> {
    let row = line.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    let row = row.strip_suffix('|').unwrap_or(row);
    let bars = row.match_indices('|').map(|(at, _)| at).filter(|at| !row[..*at].ends_with('\\'));
    let ends: Vec<usize> = bars.chain([row.len()]).collect();
    let starts = [0].into_iter().chain(ends.iter().map(|end| end + 1));
    starts.zip(&ends).map(|(start, end)| row[start..*end].trim()).collect()
}

/// The targets of the links in a Markdown text, except those to other sites.
fn links<'a>(text: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|target| !target.contains("://"))
}

/// `text` with each Markdown link replaced by the link's text.
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

/// `text` without Markdown's marks for links, code and bold.
fn plain(text: &str) -> String {
    unlinked(text).replace("\\|", "|").replace('`', "").replace("**", "")
}
