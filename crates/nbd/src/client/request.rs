//! Encoder of request headers.

use alloc::vec::Vec;

use crate::wire::{
    Command, CommandFlags, EXTENDED_REQUEST_LEN, EXTENDED_REQUEST_MAGIC, Framing, REQUEST_LEN, REQUEST_MAGIC, Request,
};

/// Length of the longest request header, in bytes; a write's payload, which follows the header, is not included.
pub const MAX_REQUEST: usize = EXTENDED_REQUEST_LEN;

impl Request {
    /// Writes the header into the front of `out`; returns its length (28 or 32 bytes). Sets the flag `PAYLOAD_LEN` in extended
    /// headers of writes.
    ///
    /// # Panics
    /// When `length` is above 2^32 - 1 and headers are compact.
    #[inline]
    pub fn encode_into(&self, framing: Framing, out: &mut [u8; MAX_REQUEST]) -> usize {
        let command = self.command.code().to_be_bytes();
        if framing.is_extended() {
            let payload = if self.command == Command::Write { CommandFlags::PAYLOAD_LEN } else { CommandFlags::NONE };
            out[0..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
            out[4..6].copy_from_slice(&(self.flags | payload).bits().to_be_bytes());
            out[6..8].copy_from_slice(&command);
            out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
            out[16..24].copy_from_slice(&self.offset.to_be_bytes());
            out[24..32].copy_from_slice(&self.length.to_be_bytes());
            EXTENDED_REQUEST_LEN
        } else {
            let length = u32::try_from(self.length).expect("compact headers carry 32-bit lengths");
            out[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            out[4..6].copy_from_slice(&self.flags.bits().to_be_bytes());
            out[6..8].copy_from_slice(&command);
            out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
            out[16..24].copy_from_slice(&self.offset.to_be_bytes());
            out[24..28].copy_from_slice(&length.to_be_bytes());
            REQUEST_LEN
        }
    }

    /// Appends the header to `out`, which may hold several requests to send together.
    ///
    /// # Panics
    /// When `length` is above 2^32 - 1 and headers are compact.
    #[inline]
    pub fn encode(&self, framing: Framing, out: &mut Vec<u8>) {
        let mut header = [0; MAX_REQUEST];
        let len = self.encode_into(framing, &mut header);
        out.extend_from_slice(&header[..len]);
    }
}
