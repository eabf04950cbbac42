//! Names of pools, tenants, volumes, clusters and hosts, and the probably intended name for a mistyped one.

/// The longest name of a pool, tenant or volume, in bytes. A name becomes a file name and a metric label.
const MAX_NAME: usize = 64;

/// True if `name` can be the name of a pool, tenant, volume, cluster or host, which becomes a file name and a metric label.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    starts_well && name.len() <= MAX_NAME && name.chars().all(allowed)
}

/// Message that `name` cannot be used as a name, with the rule for names.
pub fn unusable_name(name: &str) -> String {
    format!(
        "{name:?} is not a usable name; use 1 to {MAX_NAME} letters a to z or A to Z, digits, '.', '_' or '-', a letter or digit first"
    )
}

/// The known name that was probably intended by `name`: it differs by few edits for its length, and shares a letter with `name`.
pub fn closest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |known: &&str| edits(name, known);
    let best = known.iter().copied().min_by_key(distance)?;
    let (edits, letters) = (edits(name, best), name.chars().count());
    (edits < letters && edits <= letters.div_ceil(3)).then_some(best)
}

/// Levenshtein distance of `a` and `b`: the number of single-character edits. O(|a| · |b|).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
