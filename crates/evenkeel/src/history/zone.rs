//! The time zone of this machine.

use std::mem::MaybeUninit;

/// By how many seconds the clocks of this machine (`$TZ`, else /etc/localtime) are ahead of UTC at `moment`, Unix time in
/// seconds; 0 if that is unknown.
pub(crate) fn local(moment: i64) -> i64 {
    let mut parts = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call, which keeps neither; it writes `parts` only.
    let made = unsafe { libc::localtime_r(&moment, parts.as_mut_ptr()) };
    // SAFETY: a structure of numbers and a pointer, all of which may be zero, and was written where the call succeeded.
    let parts = unsafe { parts.assume_init() };
    if made.is_null() { 0 } else { parts.tm_gmtoff }
}

#[cfg(test)]
mod tests {
    #[test]
    fn offsets_are_less_than_a_day() {
        for moment in [0, 1_795_834_800, i64::MAX] {
            assert!(super::local(moment).abs() < 86_400, "{moment}");
        }
    }
}
