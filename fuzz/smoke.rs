//! The fuzz targets without a fuzzer: the kept corpus, and mutations of it. Included by the tests of the crates that
//! the targets are in.
//!
//! Deterministic: the same seed runs the same inputs. A failure names the file and the seed that led to it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `bound`, which is not zero.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Values at which lengths and offsets break.
const EDGES: [u64; 12] = [0, 1, 2, 8, 9, 511, 512, 4096, 1 << 25, u32::MAX as u64, 1 << 63, u64::MAX];

/// The same in texts, with what texts are made of.
const WORDS: [&str; 16] = [
    "0",
    "-1",
    "1e999",
    "nan",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "\"",
    "[",
    "{",
    "=",
    ",",
    "\n",
    " ",
    ":",
    "\u{fe}",
];

fn mutate(input: &mut Vec<u8>, corpus: &[(String, Vec<u8>)], random: &mut Random) {
    for _ in 0..=random.below(4) {
        if input.is_empty() {
            input.push(random.next() as u8);
        }
        let at = random.below(input.len());
        let end = at + random.below(input.len() - at + 1);
        match random.below(9) {
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.next() as u8,
            2 => input.truncate(at),
            3 => drop(input.drain(at..end)),
            4 => input.insert(at, random.next() as u8),
            5 => {
                let copy = input[at..end].to_vec();
                let to = random.below(input.len());
                input.splice(to..to, copy);
            }
            6 => {
                let width = [2, 4, 8][random.below(3)].min(input.len() - at);
                let edge = EDGES[random.below(EDGES.len())].to_be_bytes();
                input[at..at + width].copy_from_slice(&edge[8 - width..]);
            }
            7 => {
                // In place of a word, or of what follows it.
                let word = WORDS[random.below(WORDS.len())];
                let length = input[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
                input.splice(at..at + length, word.bytes());
            }
            _ => {
                let other = &corpus[random.below(corpus.len())].1;
                let from = random.below(other.len().max(1)).min(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}

/// Runs a target on its corpus and on so many mutations of it.
pub(crate) fn smoke(target: &str, mutations: u64, body: fn(&[u8])) {
    smoke_with(target, mutations, body, Vec::new());
}

/// As [`smoke`], with inputs that the caller makes, each with a name, in addition to the corpus. With `EVENKEEL_WRITE=1` they
/// are written into the corpus, so that a fuzzer begins with them, too.
pub(crate) fn smoke_with(target: &str, mutations: u64, body: fn(&[u8]), made: Vec<(String, Vec<u8>)>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    if !made.is_empty() && std::env::var_os("EVENKEEL_WRITE").is_some() {
        fs::create_dir_all(&folder).expect("a folder for the corpus");
        made.iter().for_each(|(name, input)| fs::write(folder.join(name), input).expect("a file of the corpus"));
    }
    let kept: Vec<PathBuf> = match fs::read_dir(&folder) {
        Ok(entries) => entries.map(|entry| entry.expect("a readable folder").path()).collect(),
        // The first run of a target whose inputs are made.
        Err(_) if !made.is_empty() => Vec::new(),
        Err(error) => panic!("{}: {error}", folder.display()),
    };
    let read = |path: &PathBuf| (path.display().to_string(), fs::read(path).expect("a readable file"));
    let mut corpus: Vec<(String, Vec<u8>)> = kept.iter().map(read).chain(made).collect();
    assert!(corpus.len() >= 3, "{} holds {} files", folder.display(), corpus.len());
    corpus.sort();
    for (name, input) in &corpus {
        assert!(catch_unwind(|| body(input)).is_ok(), "{target} fails on {name}");
    }
    for seed in 0..mutations {
        let mut random = Random(seed);
        let (name, input) = &corpus[random.below(corpus.len())];
        let mut input = input.clone();
        mutate(&mut input, &corpus, &mut random);
        let held = catch_unwind(AssertUnwindSafe(|| body(&input))).is_ok();
        assert!(held, "{target} fails on {name} mutated with seed {seed}: {:?}", input.escape_ascii().to_string());
    }
}
