//! Tests that no modules of a crate form a circle of imports.
//!
//! A module is a file. A file in a folder is a part of the folder's module, whose items it may use; but no circle may leave the
//! folder in this way. A re-export does not count as a use: an item that is used through it counts as used from the module that
//! defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Circles that are allowed: the crate, the circle's modules, and the reason.
const EXCEPTIONS: [(&str, &[&str], &str); 2] = [
    (
        "control",
        &["throughput::accurate", "throughput::share", "throughput::stream"],
        "a stream holds what the method of limits remembers of it, and the method reads the stream",
    ),
    ("model", &["device", "raid"], "the members of a RAID are devices, and a RAID is one"),
];

/// Texts of modules, by the module's path.
type Texts = BTreeMap<Vec<String>, String>;
/// The modules that each module uses.
type Edges = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// The tokens of a source: names, `::`, and single other characters, without comments, literals, lifetimes and blanks.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
        let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let hashes = rest[1.min(rest.len())..].bytes().take_while(|&byte| byte == b'#').count();
        let skipped = match first {
            _ if rest.starts_with("//") => until("\n"),
            _ if rest.starts_with("/*") => until("*/"),
            'r' if rest[1 + hashes..].starts_with('"') => {
                let end = format!("\"{}", "#".repeat(hashes));
                let begin = hashes + 2;
                begin + rest[begin..].find(&end).map_or(rest.len() - begin, |at| at + end.len())
            }
            '"' => 1 + length(&rest[1..], '"'),
            '\'' if rest[1..].starts_with('\\') => 1 + length(&rest[1..], '\''),
            '\'' if rest[1..].chars().nth(1) == Some('\'') => 2 + rest[1..].chars().next().map_or(0, char::len_utf8),
            '\'' => 1 + rest[1..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len() - 1),
            _ if first.is_whitespace() => first.len_utf8(),
            _ => 0,
        };
        let taken = match name {
            _ if skipped > 0 => skipped,
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            _ => name,
        };
        if skipped == 0 {
            tokens.push(&rest[..taken]);
        }
        rest = &rest[taken..];
    }
    tokens
}

/// Number of bytes up to and including the quote that ends a literal; `text` begins after the opening quote.
fn length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.char_indices().find(|&(_, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The tokens without those parts of the source that are compiled only for tests.
fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&MARK) {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        let mut depth = 0;
        at += MARK.len();
        while let Some(token) = tokens.get(at) {
            at += 1;
            depth += i32::from(matches!(*token, "{" | "[" | "(")) - i32::from(matches!(*token, "}" | "]" | ")"));
            if depth <= 0 && matches!(*token, "}" | ";" | ",") {
                break;
            }
        }
    }
    kept
}

/// Items and imports of a module.
#[derive(Default)]
struct Module {
    /// Names of the items that the module defines.
    items: BTreeSet<String>,
    /// Imports of the module: path, name in the module, and true if the item is exported again.
    imports: Vec<(Vec<String>, String, bool)>,
    /// Paths that the module's code contains.
    paths: Vec<Vec<String>>,
}

impl Module {
    fn of(text: &str) -> Self {
        const KINDS: [&str; 8] = ["struct", "enum", "fn", "const", "static", "type", "trait", "union"];
        let tokens = without_tests(&tokens(text));
        let mut module = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            let token = tokens[at];
            at += 1;
            if token == "use" {
                let end = at + tokens[at..].iter().position(|&token| token == ";").unwrap_or(tokens.len() - at);
                let before = tokens[..at - 1].last().copied();
                module.import(&tokens[at..end], &[], before == Some("pub") || before == Some(")"));
                at = end;
            } else if KINDS.contains(&token) && at < tokens.len() {
                module.items.insert(tokens[at].to_owned());
            } else if is_name(token) && tokens.get(at) == Some(&"::") {
                let mut path = vec![token.to_owned()];
                while tokens.get(at) == Some(&"::") && tokens.get(at + 1).is_some_and(|token| is_name(token)) {
                    path.push(tokens[at + 1].to_owned());
                    at += 2;
                }
                module.paths.push(path);
            }
        }
        module
    }

    /// Adds the imports of a `use` declaration, given as its tokens; `prefix` is the path before them.
    fn import(&mut self, tree: &[&str], prefix: &[String], public: bool) {
        let named = tree.iter().take_while(|&&token| token != "{" && token != "as");
        let own = named.clone().filter(|&&token| token != "::").map(|&token| token.to_owned());
        let mut path: Vec<String> = prefix.iter().cloned().chain(own).collect();
        match &tree[named.count()..] {
            ["{", inside @ .., "}"] => {
                let mut depth = 0;
                let parts = inside.split(|&token| {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    token == "," && depth == 0
                });
                parts.filter(|part| !part.is_empty()).for_each(|part| self.import(part, &path, public));
            }
            rest => {
                path.pop_if(|last| last == "self");
                let name = rest.get(1).map(|&name| name.to_owned()).or(path.last().cloned());
                self.imports.extend(name.map(|name| (path, name, public)));
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The module that defines the item to which `path` refers in module `at`; `None` if the item is in another crate. At most `left`
/// imports are followed.
fn resolved(modules: &BTreeMap<Vec<String>, Module>, at: &[String], path: &[String], left: u32) -> Option<Vec<String>> {
    let left = left.checked_sub(1)?;
    let (mut module, mut rest) = (at.to_vec(), path);
    while let Some((first, others)) = rest.split_first() {
        match first.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => drop(module.pop()),
            _ => break,
        }
        rest = others;
    }
    while let Some((first, others)) = rest.split_first() {
        module.push(first.clone());
        if !modules.contains_key(&module) {
            module.pop();
            break;
        }
        rest = others;
    }
    let Some((name, others)) = rest.split_first() else { return Some(module) };
    let here = modules.get(&module)?;
    let found = (rest.len() < path.len()).then_some(module.clone());
    if found.is_some() && here.items.contains(name) {
        return found;
    }
    let through = here.imports.iter().filter_map(|(import, known, _)| match import.split_last() {
        Some((all, within)) if all == "*" => Some([within, rest].concat()),
        _ if known == name && import != path => Some([import, others].concat()),
        _ => None,
    });
    through.filter_map(|path| resolved(modules, &module, &path, left)).next().or(found)
}

/// The modules that each module uses, found from the modules' texts.
fn edges(texts: &Texts) -> Edges {
    /// The most imports that are followed from one to the next.
    const FOLLOWED: u32 = 8;
    let modules: BTreeMap<_, _> = texts.iter().map(|(path, text)| (path.clone(), Module::of(text))).collect();
    let used = modules.iter().map(|(at, module)| {
        let imports = module.imports.iter().map(|(path, _, public)| (path, *public));
        let paths = imports.chain(module.paths.iter().map(|path| (path, false)));
        let used = paths.filter_map(|(path, exported)| {
            let used = resolved(&modules, at, path, FOLLOWED)?;
            (used != *at && !(exported && used.starts_with(at))).then_some(used)
        });
        (at.clone(), used.collect())
    });
    used.collect()
}

/// The circles: sets of modules that use each other, directly or through other modules.
fn circles(edges: &Edges) -> BTreeSet<BTreeSet<Vec<String>>> {
    let reached = |from: &Vec<String>| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(edges.get(module).into_iter().flatten().filter(|&used| reached.insert(used.clone())));
        }
        reached
    };
    let reached: BTreeMap<_, _> = edges.keys().map(|from| (from, reached(from))).collect();
    let circle = |(from, to): (&&Vec<String>, &BTreeSet<Vec<String>>)| {
        let back = to.iter().filter(|&module| reached.get(module).is_some_and(|to| to.contains(*from)));
        back.cloned().collect::<BTreeSet<_>>()
    };
    reached.iter().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// The circles that are not allowed: all except those that consist of a folder's module and its parts.
fn wrong(edges: &Edges) -> BTreeSet<BTreeSet<Vec<String>>> {
    let inside = |circle: BTreeSet<Vec<String>>| {
        let whole =
            circle.first().is_some_and(|first| !first.is_empty() && circle.iter().all(|m| m.starts_with(first)));
        if !whole {
            return BTreeSet::from([circle]);
        }
        let parts = circle.iter().map(|module| {
            let used = edges[module].iter().filter(|&used| circle.contains(used) && !module.starts_with(used));
            (module.clone(), used.cloned().collect())
        });
        circles(&parts.collect())
    };
    circles(edges).into_iter().flat_map(inside).collect()
}

/// Adds the texts of all source files below `folder`, the folder of module `at`, except tests.
fn read(folder: &Path, at: &[String], texts: &mut Texts) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let module = match name.as_str() {
            "lib" | "main" | "mod" => at.to_vec(),
            _ => [at, std::slice::from_ref(&name)].concat(),
        };
        if path.is_dir() && name != "tests" {
            read(&path, &module, texts);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !name.ends_with("tests") {
            texts.insert(module, std::fs::read_to_string(path).expect("text"));
        }
    }
}

#[test]
fn no_modules_of_a_crate_form_a_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut modules, mut used, mut complaints, mut excepted) = (0, 0, Vec::new(), 0);
    for entry in std::fs::read_dir(crates).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let mut texts = Texts::new();
        read(&path.join("src"), &[], &mut texts);
        let edges = edges(&texts);
        modules += texts.len();
        used += edges.values().map(BTreeSet::len).sum::<usize>();
        for circle in wrong(&edges) {
            let circle: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            let known = EXCEPTIONS.iter().any(|(of, modules, _)| *of == name && **modules == *circle);
            excepted += usize::from(known);
            if !known {
                complaints.push(format!("{name}: {}", circle.join(", ")));
            }
        }
    }
    assert!(modules > 400 && used > 1_000, "only {modules} modules and {used} uses are found");
    assert!(complaints.is_empty(), "modules that use each other:\n{}", complaints.join("\n"));
    assert_eq!(excepted, EXCEPTIONS.len(), "an exception without its circle");
}

/// The circles that are not allowed in modules with these texts (path and text), one line for each.
fn found(texts: &[(&str, &str)]) -> Vec<String> {
    let module = |path: &str| path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let texts: Texts = texts.iter().map(|(path, text)| (module(path), (*text).to_owned())).collect();
    let line = |circle: BTreeSet<Vec<String>>| circle.iter().map(|m| m.join("::")).collect::<Vec<_>>().join(" ");
    wrong(&edges(&texts)).into_iter().map(line).collect()
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let b = ("b", "use crate::a::A; pub struct B(A);");
    assert_eq!(found(&[("a", "pub struct A; // crate::b::B"), b]), [""; 0]);
    for a in [
        "use super::b::B; pub struct A;",
        "use crate::{c::C, b::{self, B as Other}}; pub struct A;",
        "pub struct A; fn f() { let c = '\\''; crate::b::B::new(\"\\\"\") }",
        "use crate::b; pub struct A; impl A { fn f<'a>(x: &'a b::B) {} }",
        "use super::b::*; pub struct A(B);",
    ] {
        assert_eq!(found(&[("a", a), b, ("c", "pub struct C;")]), ["a b"], "{a}");
    }
    let tests = "pub struct A; #[cfg(test)] use crate::b::B; #[cfg(test)] mod tests { use crate::b::B; }";
    assert_eq!(found(&[("a", tests), b]), [""; 0]);
    assert_eq!(found(&[("a", "pub struct A; const T: &str = r#\"crate::b::B\"#;"), b]), [""; 0]);
}

#[test]
fn a_re_export_is_no_use_and_is_followed() {
    let facade = ("", "pub use a::A; pub use b::B;");
    assert_eq!(found(&[facade, ("a", "use crate::B; pub struct A;"), ("b", "pub struct B;")]), [""; 0]);
    assert_eq!(found(&[facade, ("a", "use crate::B; pub struct A;"), ("b", "use crate::A; pub struct B;")]), ["a b"]);
}

#[test]
fn a_part_of_a_folder_may_use_the_folder_but_not_its_users() {
    let folder = ("f", "mod a; mod b; use a::A; pub struct F(A);");
    let (a, b) = (("f::a", "use super::F; pub struct A;"), ("f::b", "pub struct B;"));
    assert_eq!(found(&[folder, a, b]), [""; 0]);
    assert_eq!(
        found(&[folder, ("f::a", "use super::b::B; pub struct A;"), ("f::b", "use super::a::A; pub struct B;")]),
        ["f::a f::b"]
    );
    let user = ("u", "use crate::f::a::A; pub struct U;");
    assert_eq!(found(&[("f", "use a::A; use crate::u::U; pub struct F(A);"), a, b, user]), ["f f::a u"]);
}
