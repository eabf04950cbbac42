//! The content of one file, read block by block.

use crate::codec::{Block, Codec};
use crate::frame::{FRAME, HEAD, Head, Tail, Unusable, payload};
use crate::resolution::Stream;

/// The content of a file, with the state of its codec behind the blocks that were read.
#[derive(Debug)]
pub(crate) struct Content {
    bytes: Vec<u8>,
    /// Length of head and blocks read, in bytes.
    pub(crate) read: usize,
    /// The codec at the end of the content. It can continue the file if [`Self::block`] has not returned [`Tail::Damaged`].
    pub(crate) codec: Codec,
}

impl Content {
    /// The content of a file of this stream.
    ///
    /// # Errors
    /// The reason if the head cannot be used.
    pub(crate) fn new(bytes: Vec<u8>, stream: Stream) -> Result<Self, Unusable> {
        let head = Head::read(&bytes)?;
        if head.stream != stream {
            return Err(Unusable::Damaged);
        }
        Ok(Self { bytes, read: HEAD, codec: Codec::new(stream, head.start) })
    }

    /// The next block; `None` at the end.
    ///
    /// # Errors
    /// The reason if nothing behind the last block can be read.
    pub(crate) fn block(&mut self) -> Result<Option<Block>, Tail> {
        let Some(payload) = payload(&self.bytes[self.read..])? else { return Ok(None) };
        let block = self.codec.decode(payload).ok_or(Tail::Damaged)?;
        self.read += FRAME + payload.len();
        Ok(Some(block))
    }
}
