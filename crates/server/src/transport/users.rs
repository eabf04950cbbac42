//! Closes descriptors that users of this machine have passed over Unix sockets.
//!
//! A user can determine how long closing such a descriptor takes, or that it never ends: for a file of a FUSE file system, the
//! kernel waits for an answer of the user's own process. So at most one thread at a time closes the descriptors of a user, and
//! those of no other user wait behind them. A user with too many that are not closed is barred.
//!
//! One user alone can also reach the bound of all users, from which on no connection over a Unix socket is accepted: a connection
//! shows its user only once it is accepted, and from then on it takes a descriptor until it is closed together with what waits in
//! it, which the user can delay. So the descriptors of one user cannot be bounded without a pause for the others.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::net::sockopt;

use crate::prompt;

/// Largest number of descriptors in one message (the kernel's `SCM_MAX_FD`).
pub(super) const MOST: usize = 253;
/// Largest number of descriptors that a user may have passed and that are not closed yet: those of one message.
const MOST_OF_USER: usize = MOST;
/// Number of such descriptors, of all users together, from which the server accepts no connections over Unix sockets: a new
/// connection may bring descriptors before its user is known to be barred.
const MOST_OF_ALL: usize = 1024;
/// Largest number of threads that close passed descriptors, each for one user.
const MOST_THREADS: usize = 64;

/// The users with open connections over Unix sockets, or with descriptors that are not closed. A user without a number is one
/// that the kernel does not show.
static USERS: Mutex<BTreeMap<Option<u32>, Weak<User>>> = Mutex::new(BTreeMap::new());

/// The threads of all users of this process.
static ALL: Closers = Closers::of(MOST_THREADS);

/// A user of this machine, as far as the descriptors that the user's processes have passed are concerned.
pub(crate) struct User {
    uid: Option<u32>,
    /// Number of passed descriptors that are not closed yet; a socket of the server in which such wait counts as one.
    open: AtomicUsize,
    queue: Mutex<Queue>,
    closers: &'static Closers,
}

#[derive(Default)]
struct Queue {
    fds: VecDeque<OwnedFd>,
    /// True if a thread closes the user's descriptors, or the user waits for a thread.
    is_served: bool,
}

/// Threads that close descriptors, each for one user at a time.
struct Closers {
    most_threads: usize,
    /// Number of descriptors of all users that are not closed yet.
    open: AtomicUsize,
    line: Mutex<Line>,
}

struct Line {
    /// Users whose descriptors wait for a thread.
    waiting: VecDeque<Arc<User>>,
    threads: usize,
}

/// True if the users have passed so many descriptors that are not closed yet that no further connections are to be accepted.
pub(crate) fn have_too_many_open() -> bool {
    ALL.serve_if(ALL.open.load(Ordering::Relaxed) >= MOST_OF_ALL)
}

impl User {
    /// The user whose process is at the other end of a Unix socket.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Arc<Self> {
        let uid = sockopt::socket_peercred(socket).ok().map(|cred| cred.uid.as_raw());
        let mut users = lock(&USERS);
        if let Some(user) = users.get(&uid).and_then(Weak::upgrade) {
            return user;
        }
        let user = Arc::new(Self::new(uid, &ALL));
        users.insert(uid, Arc::downgrade(&user));
        user
    }

    fn new(uid: Option<u32>, closers: &'static Closers) -> Self {
        Self { uid, open: AtomicUsize::new(0), queue: Mutex::default(), closers }
    }

    /// A user with more descriptors that are not closed than a user may have.
    #[cfg(test)]
    pub(crate) fn barred() -> Arc<Self> {
        let user = Self::new(None, &ALL);
        user.open.store(MOST_OF_USER + 1, Ordering::Relaxed);
        Arc::new(user)
    }

    /// True if the user has passed too many descriptors that are not closed yet: nothing is received from the user meanwhile.
    pub(super) fn is_barred(&self) -> bool {
        self.closers.serve_if(self.open.load(Ordering::Relaxed) > MOST_OF_USER)
    }

    /// Takes over descriptors that the user has passed, or sockets in which such wait, and has a thread close them.
    pub(super) fn give(self: &Arc<Self>, fds: Vec<OwnedFd>) {
        self.open.fetch_add(fds.len(), Ordering::Relaxed);
        self.closers.open.fetch_add(fds.len(), Ordering::Relaxed);
        let mut queue = lock(&self.queue);
        queue.fds.extend(fds);
        let is_served = std::mem::replace(&mut queue.is_served, true);
        drop(queue);
        self.closers.serve((!is_served).then(|| Arc::clone(self)));
    }

    /// The next descriptor to be closed; `None` if there is none, and the thread is to serve another user.
    fn take(&self) -> Option<OwnedFd> {
        let mut queue = lock(&self.queue);
        let fd = queue.fds.pop_front();
        queue.is_served = fd.is_some();
        fd
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut users = lock(&USERS);
        // A new connection of the user may have taken the place.
        if users.get(&self.uid).is_some_and(|user| user.strong_count() == 0) {
            users.remove(&self.uid);
        }
    }
}

impl Closers {
    const fn of(most_threads: usize) -> Self {
        let line = Line { waiting: VecDeque::new(), threads: 0 };
        Self { most_threads, open: AtomicUsize::new(0), line: Mutex::new(line) }
    }

    /// Puts a user in the line, if one is given, and starts a thread for those that wait. Without a further thread they wait
    /// until another is done, or until the next call.
    fn serve(&'static self, user: Option<Arc<User>>) {
        let mut line = lock(&self.line);
        line.waiting.extend(user);
        if line.waiting.is_empty() || line.threads >= self.most_threads {
            return;
        }
        if std::thread::Builder::new().name("evenkeel-passed".into()).spawn(move || self.run()).is_ok() {
            line.threads += 1;
        }
    }

    /// Returns `too_many`. If it is true, and users wait because no thread could be started for them, tries again: those who are
    /// barred bring no descriptors that would do so.
    #[inline]
    fn serve_if(&'static self, too_many: bool) -> bool {
        if too_many {
            self.serve(None);
        }
        too_many
    }

    /// Closes descriptors until no user waits.
    fn run(&self) {
        prompt::roam();
        while let Some(user) = self.next() {
            while let Some(fd) = user.take() {
                // A TCP socket does not linger; other descriptors have no such option.
                let _ = sockopt::set_socket_linger(&fd, None);
                drop(fd);
                user.open.fetch_sub(1, Ordering::Relaxed);
                self.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// The user whose descriptors are closed next; `None` if there is none, and the thread is to end.
    fn next(&self) -> Option<Arc<User>> {
        let mut line = lock(&self.line);
        let user = line.waiting.pop_front();
        line.threads -= usize::from(user.is_none());
        user
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _, Write as _};
    use std::net::TcpStream;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::super::passed::tests::{connection, pass};
    use super::super::passed::{Closer, close_by, start};
    use super::*;

    /// A descriptor whose closing waits until the other value is dropped.
    fn hanging() -> (OwnedFd, TcpStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, far) = connection();
        sockopt::set_socket_linger(&passed, Some(Duration::from_secs(100_000))).unwrap();
        passed.set_nonblocking(true).unwrap();
        // The far end reads nothing of it.
        while (&passed).write(&[0; 1 << 16]).is_ok() {}
        pass(&theirs, passed.as_fd()).unwrap();
        (ours.into(), far)
    }

    #[track_caller]
    fn until_closed(mut far: TcpStream) {
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(far.read(&mut [0; 16]).unwrap(), 0);
    }

    #[test]
    fn descriptors_that_cannot_be_closed_delay_those_of_no_other_user() {
        static CLOSERS: Closers = Closers::of(2);
        let [stuck, other] = [1, 2].map(|uid| Arc::new(User::new(Some(uid), &CLOSERS)));
        let (fd, far) = hanging();
        let ((behind, far_of_behind), (quick, far_of_quick)) = (connection(), connection());
        stuck.give(vec![fd, behind.into()]);
        other.give(vec![quick.into()]);
        until_closed(far_of_quick);
        assert_eq!(stuck.open.load(Ordering::Relaxed), 2, "neither of the first user's is closed");
        drop(far);
        until_closed(far_of_behind);
    }

    #[test]
    fn a_user_is_barred_while_more_are_open_than_one_message_holds() {
        static CLOSERS: Closers = Closers::of(1);
        let [stuck, other] = [1, 2].map(|uid| Arc::new(User::new(Some(uid), &CLOSERS)));
        let (fd, far) = hanging();
        let (own, _peer) = UnixStream::pair().unwrap();
        stuck.give(vec![fd]);
        stuck.give((1..MOST_OF_USER).map(|_| own.try_clone().unwrap().into()).collect());
        assert!(!stuck.is_barred());
        stuck.give(vec![own.try_clone().unwrap().into()]);
        assert!(stuck.is_barred() && !other.is_barred());
        // The other user waits for the only thread.
        other.give(vec![own.into()]);
        assert_eq!(lock(&CLOSERS.line).threads, 1);
        drop(far);
        let until = Instant::now() + Duration::from_secs(60);
        while stuck.is_barred() || CLOSERS.open.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < until, "{} are left", CLOSERS.open.load(Ordering::Relaxed));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_socket_for_which_no_thread_starts_is_left_to_one_of_its_user() {
        static CLOSERS: Closers = Closers::of(1);
        static CLOSER: Closer = Mutex::new(None);
        let user = Arc::new(User::new(Some(1), &CLOSERS));
        let ((own, far), (next, far_of_next)) = (connection(), connection());
        // As if no thread could be started.
        lock(&CLOSERS.line).threads = 1;
        close_by(&CLOSER, || Err(io::ErrorKind::WouldBlock.into()), own.into(), Arc::clone(&user));
        assert_eq!((user.open.load(Ordering::Relaxed), lock(&CLOSERS.line).waiting.len()), (1, 1));
        close_by(&CLOSER, start, next.into(), Arc::clone(&user));
        until_closed(far_of_next);
        assert!(lock(&CLOSER).is_some(), "there is a thread now");
        assert_eq!(user.open.load(Ordering::Relaxed), 1, "the first one waits for a thread of its user");
        lock(&CLOSERS.line).threads = 0;
        CLOSERS.serve(None);
        until_closed(far);
    }

    #[test]
    fn a_user_does_not_stay_barred_for_want_of_a_thread() {
        static CLOSERS: Closers = Closers::of(1);
        let user = Arc::new(User::new(Some(1), &CLOSERS));
        let (own, _peer) = UnixStream::pair().unwrap();
        // As if no thread could be started.
        lock(&CLOSERS.line).threads = 1;
        user.give((0..=MOST_OF_USER).map(|_| own.try_clone().unwrap().into()).collect());
        assert_eq!((user.open.load(Ordering::Relaxed), lock(&CLOSERS.line).waiting.len()), (MOST_OF_USER + 1, 1));
        lock(&CLOSERS.line).threads = 0;
        let until = Instant::now() + Duration::from_secs(60);
        while user.is_barred() {
            assert!(Instant::now() < until, "none is closed");
            std::thread::yield_now();
        }
    }

    #[test]
    fn connections_of_a_user_have_one_count_that_ends_with_them() {
        let (one, other) = UnixStream::pair().unwrap();
        let users = [User::of(one.as_fd()), User::of(other.as_fd())];
        assert!(Arc::ptr_eq(&users[0], &users[1]) && users[0].uid.is_some());
        assert!(lock(&USERS).contains_key(&users[0].uid));
        // Those of users that have none are dropped with the last connection.
        let own = Arc::new(User::new(Some(u32::MAX - 1), &ALL));
        lock(&USERS).insert(own.uid, Arc::downgrade(&own));
        drop(own);
        assert!(!lock(&USERS).contains_key(&Some(u32::MAX - 1)));
    }
}
