//! Names that LVM gives to device-mapper devices.

/// Volume group and logical volume in the device-mapper name `dm_name`.
///
/// LVM joins the two parts with one dash and doubles the dashes inside each part: `vg--a-lv1` is volume `lv1` of group
/// `vg-a`. Layers below a volume (`vg-lv_tdata`, `vg-lv-real`) have a third part or a suffix, which is returned with the
/// volume's name. `None` if there is no second part.
pub fn split(dm_name: &str) -> Option<(String, String)> {
    let (mut group, mut volume, mut in_volume) = (String::new(), String::new(), false);
    let mut characters = dm_name.chars().peekable();
    while let Some(character) = characters.next() {
        let doubled = character == '-' && characters.next_if_eq(&'-').is_some();
        match (character, doubled, in_volume) {
            ('-', false, false) => in_volume = true,
            (_, _, false) => group.push(character),
            (_, _, true) => volume.push(character),
        }
    }
    (in_volume && !group.is_empty() && !volume.is_empty()).then_some((group, volume))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(group: &str, volume: &str) -> Option<(String, String)> {
        Some((group.into(), volume.into()))
    }

    #[test]
    fn doubled_dashes_belong_to_the_parts() {
        assert_eq!(split("vg1-lv1"), pair("vg1", "lv1"));
        assert_eq!(split("vg--a-lv--b"), pair("vg-a", "lv-b"));
        assert_eq!(split("vg----a-x"), pair("vg--a", "x"));
        assert_eq!(split("vg-lv-real"), pair("vg", "lv-real"));
        assert_eq!(split("vg---lv"), pair("vg-", "lv"));
        assert_eq!(split("plain"), None);
        assert_eq!(split("-lv"), None);
        assert_eq!(split("vg--"), None);
        assert_eq!(split(""), None);
    }

    proptest! {
        #[test]
        fn what_lvm_joins_comes_apart(group in "[a-z][a-z0-9_.+-]{0,9}", volume in "[a-z][a-z0-9_.+]{0,9}") {
            // A group that ends in a dash is told from one that does not only by what LVM forbids: a volume cannot begin with a dash.
            let joined = format!("{}-{}", group.replace('-', "--"), volume.replace('-', "--"));
            prop_assert_eq!(split(&joined), pair(&group, &volume));
        }

        #[test]
        fn arbitrary_names_do_not_panic(name in ".{0,60}") {
            let _ = split(&name);
        }
    }
}
