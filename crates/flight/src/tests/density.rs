//! The room that a recording takes.

use crate::{Head, Item, Kind, Recording, Request, Writer};

/// Numbers that look random (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A time of an exponential distribution.
    fn exponential(&mut self, mean_ns: u64) -> u64 {
        let uniform = (self.below(1 << 40) + 1) as f64 / (1_u64 << 40) as f64;
        (-uniform.ln() * mean_ns as f64) as u64
    }
}

/// Requests of 4 KiB at a rate of 300,000 a second and a queue depth of 128, and thus a mean latency of 427 us: of 16 tenants,
/// each with four clients and a volume of 1 TiB, at random or each behind the previous one of its client.
fn load(count: usize, is_random: bool) -> Vec<Request> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut completed_ns = 2_000_000;
    let mut next = [0_u64; 64];
    let mut request = || {
        completed_ns += random.exponential(3_333);
        let (queue_ns, device_ns) = (random.below(654_000), 80_000 + random.exponential(20_000));
        let client = random.below(64) as u32;
        let block = if is_random {
            random.below(1 << 28)
        } else {
            let place = &mut next[client as usize];
            *place += 1;
            *place
        };
        Request {
            arrival_ns: completed_ns - queue_ns - device_ns,
            queue_ns,
            device_ns,
            tenant: client / 4,
            client,
            volume: client / 4,
            kind: if random.below(10) < 7 { Kind::Read } else { Kind::Write },
            offset: block << 12,
            length: 1 << 12,
            ..Request::default()
        }
    };
    (0..count).map(|_| request()).collect()
}

/// Bytes a request, all included.
fn density(requests: &[Request]) -> f64 {
    let mut writer = Writer::new(Vec::new(), &Head::default()).expect("memory can be written");
    requests.iter().for_each(|request| writer.write(&Item::Request(*request)).expect("memory can be written"));
    let bytes = writer.finish().expect("memory can be written");
    let recording = Recording::from_input(bytes.as_slice()).expect("a recording");
    assert_eq!(recording.requests.len(), requests.len());
    bytes.len() as f64 / requests.len() as f64
}

#[test]
fn a_random_load_takes_less_than_16_bytes_a_request() {
    let requests = load(50_000, true);
    let took_ns = requests.iter().map(|request| request.arrival_ns).max().unwrap_or(0);
    assert!((140_000_000..200_000_000).contains(&took_ns), "300,000 requests a second, not 50,000 in {took_ns} ns");
    let in_flight: u64 = requests.iter().map(|request| request.queue_ns + request.device_ns).sum::<u64>() / took_ns;
    assert!((115..140).contains(&in_flight), "a queue depth of 128, not {in_flight}");
    let density = density(&requests);
    assert!(density < 13.0, "{density} bytes a request");
}

#[test]
fn requests_of_many_lengths_and_clients_take_less_than_16_bytes() {
    let mut random = Random(7);
    let mut requests = load(50_000, true);
    for request in &mut requests {
        request.offset += random.below(8) * 512;
        request.length = (random.below(128) + 1) * 512;
        request.client = random.below(200) as u32;
        request.tenant = request.client / 2;
        request.volume = request.client / 2;
    }
    let density = density(&requests);
    assert!(density < 15.0, "{density} bytes a request");
}

#[test]
fn streams_take_less_than_random_loads() {
    let (streams, random) = (density(&load(50_000, false)), density(&load(50_000, true)));
    assert!(streams < random - 1.0, "{streams} bytes a request of a stream, {random} at random");
}
