//! Tests of the event queue, compared with a list that is searched from end to end.

use evenkeel_control::Instant;
use evenkeel_sim::engine::{Due, EVENTS_AT_ONE_INSTANT, Queue};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    PushInLine(u64),
    Alarm(usize, Option<u64>),
    Pop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few different instants, so that many coincide; some of them past.
    let step = prop_oneof![
        (0u64..40).prop_map(Step::Push),
        (0u64..40).prop_map(Step::PushInLine),
        (0usize..2, prop::option::of(0u64..40)).prop_map(|(alarm, at)| Step::Alarm(alarm, at)),
        Just(Step::Pop),
    ];
    proptest::collection::vec(step, 1..200)
}

/// A reference implementation of the queue's guarantees, as simple as possible and slow.
#[derive(Default)]
struct List {
    now: u64,
    alarms: [Option<u64>; 2],
    events: Vec<(u64, usize)>,
}

impl List {
    fn pop(&mut self) -> Option<(u64, Due<usize>)> {
        let event = self.events.iter().copied().min();
        let alarm = (0..2).filter_map(|number| Some((self.alarms[number]?, number))).min();
        let (at, due) = match (event, alarm) {
            (Some((at, event)), None) => (at, Due::Event(event)),
            (Some((at, event)), Some((alarm_at, _))) if at < alarm_at => (at, Due::Event(event)),
            (_, Some((at, number))) => (at, Due::Alarm(number)),
            (None, None) => return None,
        };
        match due {
            Due::Event(event) => self.events.retain(|&(_, other)| other != event),
            Due::Alarm(number) => self.alarms[number] = None,
        }
        self.now = at;
        Some((at, due))
    }
}

proptest! {
    #[test]
    fn happens_in_the_order_of_a_list(steps in steps()) {
        let mut queue: Queue<usize, 2> = Queue::default();
        let mut list = List::default();
        let instant = Instant::from_nanos;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(at) => {
                    queue.push(instant(at), number);
                    list.events.push((at.max(list.now), number));
                }
                Step::PushInLine(at) => {
                    queue.push_in_line(instant(at), number);
                    list.events.push((at.max(list.now), number));
                }
                Step::Alarm(alarm, at) => {
                    queue.set_alarm(alarm, at.map_or(Instant::FAR_FUTURE, instant));
                    list.alarms[alarm] = at.map(|at| at.max(list.now));
                }
                Step::Pop => {
                    let before = queue.now();
                    let popped = queue.pop();
                    prop_assert_eq!(popped.map(|(at, due)| (at.as_nanos(), due)), list.pop());
                    prop_assert!(queue.now() >= before);
                }
            }
        }
        while let Some((at, due)) = queue.pop() {
            prop_assert_eq!(Some((at.as_nanos(), due)), list.pop());
        }
        prop_assert_eq!(list.pop(), None);
    }
}

#[test]
fn an_instant_that_does_not_end_is_noticed_and_a_crowded_one_is_not() {
    let mut queue: Queue<(), 1> = Queue::default();
    let at = Instant::from_nanos(5);
    for _ in 0..EVENTS_AT_ONE_INSTANT {
        queue.set_alarm(0, at);
        queue.pop();
    }
    assert!(!queue.is_looping());
    queue.push(at, ());
    queue.pop();
    assert!(queue.is_looping());
    queue.push(Instant::from_nanos(6), ());
    queue.pop();
    assert!(!queue.is_looping());
}
