//! Names of RBD images as Ceph's own tools write them.

use std::fmt;
use std::str::FromStr;

use crate::units::{UnitError, as_text};

const FORM: &str = "write POOL/IMAGE, POOL/NAMESPACE/IMAGE, either with @SNAPSHOT";

/// An image of a Ceph cluster: `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Image {
    /// Name of the image's pool.
    pub pool: String,
    /// Namespace of the image in the pool; `None`: the default namespace.
    pub namespace: Option<String>,
    /// Name of the image.
    pub name: String,
    /// Name of a snapshot of the image, which can only be read; `None`: the image itself.
    pub snapshot: Option<String>,
}

impl FromStr for Image {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::new(format!("`{text}` is not an RBD image: {FORM}"));
        let (image, snapshot) = match text.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = image.split('/').collect();
        let (pool, namespace, name) = match parts[..] {
            [pool, name] => (pool, None, name),
            [pool, namespace, name] => (pool, Some(namespace), name),
            _ => return Err(wrong()),
        };
        let all = [Some(pool), namespace, Some(name), snapshot];
        let bad = |part: &str| part.is_empty() || part.contains(|c: char| c.is_control() || c == '/' || c == '@');
        if all.into_iter().flatten().any(bad) {
            return Err(wrong());
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

as_text!(Image, "an RBD image such as \"pool/image\"", None, {
    "type": "string",
    "pattern": "^[^/@]+(/[^/@]+){1,2}(@[^/@]+)?$"
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_are_understood_are_written_as_they_were() {
        for (text, pool, namespace, name, snapshot) in [
            ("rbd/disk", "rbd", None, "disk", None),
            ("rbd/disk@monday", "rbd", None, "disk", Some("monday")),
            ("rbd/team a/disk", "rbd", Some("team a"), "disk", None),
            ("rbd/team/disk@1.2", "rbd", Some("team"), "disk", Some("1.2")),
        ] {
            let image: Image = text.parse().unwrap();
            assert_eq!((image.pool.as_str(), image.name.as_str()), (pool, name), "{text}");
            assert_eq!((image.namespace.as_deref(), image.snapshot.as_deref()), (namespace, snapshot), "{text}");
            assert_eq!(image.to_string(), text);
        }
    }

    #[test]
    fn what_names_no_image_is_refused_with_the_form() {
        for text in
            ["", "disk", "/disk", "rbd/", "rbd//disk", "a/b/c/d", "rbd/disk@", "rbd/disk@a@b", "rbd/a\0b", "rbd@s/disk"]
        {
            let error = text.parse::<Image>().unwrap_err().to_string();
            assert!(error.contains("POOL/IMAGE"), "{text}: {error}");
        }
    }
}
