//! Room for a history on the file system of its folder.

use evenkeel_history::Bounds;
use evenkeel_policy::figures::bytes;
use evenkeel_policy::health::Trouble;
use evenkeel_policy::space::is_scarce;

use super::place::Place;

/// The room of a file system, and the bytes that the history there may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) free_bytes: u64,
    pub(super) capacity_bytes: u64,
    /// The bound of the history without the bytes that it has.
    pub(super) missing_bytes: u64,
}

impl Room {
    /// The room at `place` for a history that has `used` bytes; `None` if it cannot be measured.
    pub(super) fn measure(place: &Place, used: u64) -> Option<Self> {
        let (free_bytes, capacity_bytes) = evenkeel_server::free_and_capacity(&place.folder).ok()?;
        Some(Self { free_bytes, capacity_bytes, missing_bytes: place.bytes.saturating_sub(used) })
    }

    /// The trouble that the file system is soon full; `None` if it is not. `key`: the key of the history's bound.
    pub(super) fn trouble(self, place: &Place, key: &str) -> Option<Trouble> {
        let Self { free_bytes, capacity_bytes, missing_bytes } = self;
        is_scarce(free_bytes, capacity_bytes, missing_bytes).then(|| {
            let folder = place.folder.display();
            let (free, capacity, missing) = (bytes(free_bytes), bytes(capacity_bytes), bytes(missing_bytes));
            // With this bound the history takes no more than what is free.
            let most = place.bytes.saturating_sub(missing_bytes).saturating_add(free_bytes);
            let bound = match most {
                most if most < Bounds::LEAST => "= \"off\"".to_owned(),
                most => format!("to at most {}", bytes(most)),
            };
            Trouble::warning(
                "space",
                "history",
                format!(
                    "{free} of {capacity} are free on the file system of {folder}, where the history may take {missing} more: nothing is recorded when it is full"
                ),
                format!("make room there (`df {folder}`), or set {key} {bound}"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_room_is_a_trouble_if_the_history_may_take_more() {
        let place = Place { folder: "/srv/history".into(), bytes: 256 << 20 };
        let trouble = |free: u64, missing: u64| {
            let room = Room { free_bytes: free << 20, capacity_bytes: 10 << 30, missing_bytes: missing << 20 };
            room.trouble(&place, "agent.history")
        };
        assert_eq!((trouble(100, 100), trouble(600, 700)), (None, None), "it fits, or a twentieth is free");
        let trouble = trouble(100, 200).expect("soon full");
        assert_eq!((trouble.kind.as_str(), trouble.about.as_str()), ("space", "history"));
        assert!(trouble.because.starts_with("100 MiB of 10.0 GiB are free"), "{trouble:?}");
        assert!(trouble.cure.contains("df /srv/history") && trouble.cure.ends_with("at most 156 MiB"), "{trouble:?}");
        // The least bound is 4 MiB.
        let room = Room { free_bytes: 1 << 20, capacity_bytes: 10 << 30, missing_bytes: 256 << 20 };
        let trouble = room.trouble(&place, "agent.history").expect("soon full");
        assert!(trouble.cure.ends_with("set agent.history = \"off\""), "{trouble:?}");
    }

    #[test]
    fn the_room_of_a_folder_is_measured() {
        let place = Place { folder: std::env::temp_dir(), bytes: 100 };
        let room = Room::measure(&place, 30).expect("there");
        assert!(room.capacity_bytes > 0 && room.free_bytes <= room.capacity_bytes, "{room:?}");
        assert_eq!(room.missing_bytes, 70);
        assert_eq!(Room::measure(&Place { folder: "/evenkeel-none".into(), bytes: 100 }, 0), None);
    }
}
