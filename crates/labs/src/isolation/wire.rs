//! The bytes that attackers send. The module shares no code with the server, whose checks the bytes are to defeat.

pub(super) use crate::base::client::{REPLY_ACK, REPLY_MAGIC as SIMPLE_REPLY_MAGIC, REQUEST_MAGIC, option, request};
use crate::base::client::{go, string};

pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const DISCONNECT: u16 = 2;
pub(super) const FLUSH: u16 = 3;
pub(super) const TRIM: u16 = 4;
pub(super) const CACHE: u16 = 5;
pub(super) const WRITE_ZEROES: u16 = 6;
pub(super) const BLOCK_STATUS: u16 = 7;
pub(super) const FUA: u16 = 1;
pub(super) const NO_HOLE: u16 = 1 << 1;
pub(super) const DF: u16 = 1 << 2;

pub(super) const LIST: u32 = 3;
const STARTTLS: u32 = 5;
pub(super) const INFO: u32 = 6;
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;
pub(super) const REPLY_ERROR: u32 = 1 << 31;

pub(super) const GREETING_LEN: usize = 18;
pub(super) const OPTION_REPLY_LEN: usize = 20;
pub(super) const SIMPLE_REPLY_LEN: usize = 16;
pub(super) const STRUCTURED_REPLY_LEN: usize = 20;
/// Flag of a structured reply chunk that is the last one of its reply.
pub(super) const DONE: u16 = 1;

/// Distance between the written parts of a volume with holes, in bytes: twice the size of the pieces in which a volume in memory
/// is stored.
pub(super) const STRIDE: u64 = 128 << 10;
/// Export name of the attacked volume.
pub(super) const EXPORT: &str = "noise";

/// Appends the client flags of the handshake: fixed newstyle, no zeroes.
pub(super) fn flags(out: &mut Vec<u8>) {
    out.extend(3u32.to_be_bytes());
}

fn whole_option(out: &mut Vec<u8>, code: u32, data: &[u8]) {
    option(out, code, data.len() as u32, data);
}

/// Appends a whole handshake that chooses the attacked volume. Returns the number of option replies that the server sends.
pub(super) fn choose(out: &mut Vec<u8>, structured: bool) -> u32 {
    flags(out);
    if structured {
        whole_option(out, STRUCTURED_REPLY, &[]);
        let mut contexts = Vec::new();
        string(&mut contexts, EXPORT);
        contexts.extend(1u32.to_be_bytes());
        string(&mut contexts, "base:allocation");
        whole_option(out, SET_META_CONTEXT, &contexts);
    }
    go(out, EXPORT);
    if structured { 3 } else { 1 }
}

/// Appends the flags and the option that starts TLS.
pub(super) fn start_tls(out: &mut Vec<u8>) {
    flags(out);
    whole_option(out, STARTTLS, &[]);
}

/// The ClientHello message of a TLS 1.3 client, always the same bytes. It costs the attacker nothing, and the server a new key
/// and a signature.
pub(super) fn client_hello() -> Vec<u8> {
    let extension = |out: &mut Vec<u8>, kind: u16, data: &[u8]| {
        out.extend(kind.to_be_bytes());
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(data);
    };
    let mut extensions = Vec::new();
    // supported_groups: x25519.
    extension(&mut extensions, 10, &[0, 2, 0, 0x1d]);
    // signature_algorithms: ECDSA, Ed25519 and RSA-PSS.
    extension(&mut extensions, 13, &[0, 8, 4, 3, 5, 3, 8, 7, 8, 4]);
    // supported_versions: 1.3.
    extension(&mut extensions, 43, &[2, 3, 4]);
    // key_share: the base point of x25519.
    let mut share = vec![0, 36, 0, 0x1d, 0, 32, 9];
    share.resize(6 + 32, 0);
    extension(&mut extensions, 51, &share);

    let mut hello = vec![3, 3];
    hello.extend([0x5a; 32]);
    // Session id, three suites, no compression.
    hello.push(32);
    hello.extend([0xa5; 32]);
    hello.extend([0, 6, 0x13, 1, 0x13, 2, 0x13, 3, 1, 0]);
    hello.extend((extensions.len() as u16).to_be_bytes());
    hello.extend(extensions);

    let mut record = vec![0x16, 3, 1];
    record.extend((hello.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend((hello.len() as u16).to_be_bytes());
    record.extend(hello);
    record
}
