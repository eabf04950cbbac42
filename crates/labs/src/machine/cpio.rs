//! Writer of the "newc" cpio format, which the kernel unpacks as its initial file system.

/// An archive under construction.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    next_inode: u32,
}

impl Archive {
    /// Adds a directory.
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    /// Adds a regular file.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.entry(path, 0o100_000 | permissions, content);
    }

    /// Ends the archive. Returns the archive's bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.next_inode += 1;
        let size = u32::try_from(content.len()).expect("a file of the initial file system is smaller than 4 GiB");
        let name_size = path.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device and special device numbers, name size, checksum.
        let fields = [self.next_inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    /// Pads the archive to a multiple of four bytes, as the format requires after a header with its name, and after content.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_laid_out_as_the_format_says() {
        let mut archive = Archive::default();
        archive.file("init", 0o755, b"hello");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("07070100000001000081ed"), "{}", &text[..22]);
        assert_eq!(&text[54..62], "00000005", "file size");
        assert_eq!(&text[94..102], "00000005", "name size");
        assert_eq!(&text[110..115], "init\0");
        assert_eq!(&text[116..121], "hello");
        assert_eq!(&text[124..130], "070701", "the next entry is aligned");
        assert!(text.contains("TRAILER!!!"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
