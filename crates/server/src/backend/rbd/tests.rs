use super::*;

#[test]
fn results_are_those_of_a_file() {
    let (size, short) = (1 << 30, 512);
    assert_eq!(code(Step::Read, 4096, size), 4096);
    assert_eq!(code(Step::Read, short, size), 512, "the worker goes on from there");
    assert_eq!(code(Step::Write { len: 4096, end: size }, 0, size), 4096);
    assert_eq!(code(Step::Range(0), 0, size), 0);
    assert_eq!(code(Step::Range(RANGE_STEP as i32), 0, size), 1 << 30);
    assert_eq!(code(Step::Flush, 0, size), 0);
    for step in [Step::Read, Step::Write { len: 1, end: 1 }, Step::Range(0), Step::Flush] {
        assert_eq!(code(step, -(libc::ESHUTDOWN as isize), size), -libc::ESHUTDOWN);
        assert_eq!(code(step, isize::MIN, size), -libc::EIO, "no errno");
    }
}

#[test]
fn a_write_that_was_cut_off_is_no_success() {
    assert_eq!(code(Step::Write { len: 4096, end: 8192 }, 0, 8191), -libc::ENOSPC);
}
