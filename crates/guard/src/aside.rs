//! Questions to files that may hang, as on a disk that does not answer: a thread of its own answers each, so that the caller
//! goes on with the latest answer.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Locks shared state, also after a panic of a thread that held the lock: a record that was left half written is still worth
/// showing, and each line of the journal is complete.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Questions that threads answer. A thread that hangs leaves its question open.
#[derive(Debug)]
pub(crate) struct Aside<Q, A> {
    open: BTreeSet<Q>,
    answered: Sender<(Q, A)>,
    answers: Receiver<(Q, A)>,
}

impl<Q, A> Default for Aside<Q, A> {
    fn default() -> Self {
        let (answered, answers) = channel();
        Self { open: BTreeSet::new(), answered, answers }
    }
}

impl<Q: Clone + Ord + Send + 'static, A: Send + 'static> Aside<Q, A> {
    /// Number of questions without an answer.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Starts a thread that answers `question` by `find`; false if the same question is open, or no thread can be started.
    pub(crate) fn ask(&mut self, question: &Q, find: impl FnOnce(&Q) -> A + Send + 'static) -> bool {
        if self.open.contains(question) {
            return false;
        }
        let (asked, answered) = (question.clone(), self.answered.clone());
        let thread = thread::Builder::new().name("evenkeel-ask".into()).spawn(move || {
            leave_files();
            let answer = find(&asked);
            // The asker may be gone.
            let _ = answered.send((asked, answer));
        });
        let is_asked = thread.is_ok();
        if is_asked {
            self.open.insert(question.clone());
        }
        is_asked
    }

    /// The next answer, with its question; `None` if none comes within this time.
    pub(crate) fn answer(&mut self, within: Duration) -> Option<(Q, A)> {
        let (question, answer) = self.answers.recv_timeout(within).ok()?;
        self.open.remove(&question);
        Some((question, answer))
    }
}

/// Gives the calling thread a table of files of its own, which holds only standard input, output and error. A thread that
/// hangs in the kernel outlives a kill of its process: with the table of the process it would keep the journal's lock and the
/// pipe to the sentinel open, and no setting would be restored. Kernels before 5.9 and some filters of system calls refuse;
/// the thread then goes on with the files of the process.
pub(crate) fn leave_files() {
    // SAFETY: closes descriptors in a copy of the table, which only this thread has. Callers call it before they open files.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_question_that_hangs_is_asked_once_and_keeps_no_other_from_its_answer() {
        let mut aside: Aside<u8, u8> = Aside::default();
        let (release, released) = channel::<()>();
        assert!(aside.ask(&1, move |question| {
            let _ = released.recv();
            question + 10
        }));
        assert!(!aside.ask(&1, |_| 0), "it is open");
        assert!(aside.ask(&2, |question| question + 10));
        assert_eq!(aside.answer(Duration::MAX), Some((2, 12)));
        assert_eq!((aside.open(), aside.answer(Duration::ZERO)), (1, None));
        drop(release);
        assert_eq!((aside.answer(Duration::MAX), aside.open()), (Some((1, 11)), 0));
        assert!(aside.ask(&1, |_| 0), "it may be asked again");
    }

    #[test]
    fn a_thread_that_leaves_the_files_of_the_process_closes_none_of_them() {
        let mut file = File::open("/proc/self/stat").unwrap();
        std::thread::spawn(|| {
            leave_files();
            assert!(File::open("/proc/self/stat").is_ok());
        })
        .join()
        .unwrap();
        let mut text = String::new();
        assert!(file.read_to_string(&mut text).is_ok() && !text.is_empty());
    }
}
