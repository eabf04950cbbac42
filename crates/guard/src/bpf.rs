//! Access to the kernel's BPF: a small assembler, and the few calls of bpf(2) that the agent needs.
//!
//! Opcodes are those of the instruction set's standard, RFC 9669.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;

/// A BPF register: R0 holds results, R1 to R5 hold arguments, R6 to R9 survive calls, R10 points to the end of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Register(u8);

pub(crate) const R0: Register = Register(0);
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
pub(crate) const R4: Register = Register(4);
pub(crate) const R5: Register = Register(5);
pub(crate) const R6: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
pub(crate) const R9: Register = Register(9);
pub(crate) const R10: Register = Register(10);

/// Width of a load or store, as the bits of the instruction's opcode: 4, 2, 1 and 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
    Double = 0x18,
}

/// Condition of a jump, as the bits of the jump's opcode; comparisons are unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Equal = 0x10,
    Greater = 0x20,
    AtLeast = 0x30,
    Unequal = 0x50,
}

/// Arithmetic operation on a register, as the bits of the instruction's opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Do {
    Add = 0x00,
    Subtract = 0x10,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Set = 0xb0,
}

/// Right operand of an operation or comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Number(i32),
    Of(Register),
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Of(register)
    }
}

/// A place in a program under construction, as the destination of jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A BPF program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<[u8; 8]>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

const CLASS_LOAD: u8 = 0x00;
const CLASS_LOAD_REGISTER: u8 = 0x01;
const CLASS_STORE: u8 = 0x02;
const CLASS_STORE_REGISTER: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_JUMP: u8 = 0x05;
const CLASS_ALU_64: u8 = 0x07;
const FROM_REGISTER: u8 = 0x08;
const MEMORY: u8 = 0x60;
const ATOMIC: u8 = 0xc0;
const DOUBLE: u8 = 0x18;
const TO_BIG_ENDIAN: u8 = 0xd8;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const MAP_BY_DESCRIPTOR: u8 = 1;

impl Assembler {
    fn push(&mut self, code: u8, to: Register, from: u8, offset: i16, number: i32) {
        let [o0, o1] = offset.to_ne_bytes();
        let [n0, n1, n2, n3] = number.to_ne_bytes();
        let registers = if cfg!(target_endian = "big") { to.0 << 4 | from } else { from << 4 | to.0 };
        self.code.push([code, registers, o0, o1, n0, n1, n2, n3]);
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds `label` to the instruction that is emitted next.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Emits `to` = `to` op `operand`, on 64 bits.
    pub(crate) fn alu(&mut self, op: Do, to: Register, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Number(number) => self.push(CLASS_ALU_64 | op as u8, to, 0, 0, number),
            Operand::Of(from) => self.push(CLASS_ALU_64 | FROM_REGISTER | op as u8, to, from.0, 0, 0),
        }
    }

    pub(crate) fn set(&mut self, to: Register, operand: impl Into<Operand>) {
        self.alu(Do::Set, to, operand);
    }

    /// Emits `to` = the address of a place on the stack.
    pub(crate) fn on_stack(&mut self, to: Register, place: i16) {
        self.set(to, R10);
        self.alu(Do::Add, to, i32::from(place));
    }

    /// Emits the conversion of a 16-bit number in `register` from network byte order to the processor's.
    pub(crate) fn network_16(&mut self, register: Register) {
        self.push(CLASS_ALU | TO_BIG_ENDIAN, register, 0, 0, 16);
    }

    pub(crate) fn load(&mut self, size: Size, to: Register, at: Register, offset: i16) {
        self.push(CLASS_LOAD_REGISTER | MEMORY | size as u8, to, at.0, offset, 0);
    }

    pub(crate) fn store(&mut self, size: Size, at: Register, offset: i16, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Number(number) => self.push(CLASS_STORE | MEMORY | size as u8, at, 0, offset, number),
            Operand::Of(from) => self.push(CLASS_STORE_REGISTER | MEMORY | size as u8, at, from.0, offset, 0),
        }
    }

    pub(crate) fn load_map(&mut self, to: Register, map: &Map) {
        self.push(CLASS_LOAD | DOUBLE, to, MAP_BY_DESCRIPTOR, 0, map.fd.as_raw_fd());
        self.push(0, R0, 0, 0, 0);
    }

    /// Emits the atomic addition of `from` to the 64-bit number in memory at `at` + `offset`; other processors may add to it
    /// at the same time.
    pub(crate) fn add_atomically(&mut self, at: Register, offset: i16, from: Register) {
        self.push(CLASS_STORE_REGISTER | ATOMIC | Size::Double as u8, at, from.0, offset, Do::Add as i32);
    }

    pub(crate) fn call(&mut self, helper: i32) {
        self.push(CLASS_JUMP | CALL, R0, 0, 0, helper);
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(CLASS_JUMP, R0, 0, 0, 0);
    }

    pub(crate) fn jump_when(&mut self, when: When, left: Register, right: impl Into<Operand>, to: Label) {
        self.jumps.push((self.code.len(), to));
        match right.into() {
            Operand::Number(number) => self.push(CLASS_JUMP | when as u8, left, 0, 0, number),
            Operand::Of(right) => self.push(CLASS_JUMP | FROM_REGISTER | when as u8, left, right.0, 0, 0),
        }
    }

    pub(crate) fn exit(&mut self) {
        self.push(CLASS_JUMP | EXIT, R0, 0, 0, 0);
    }

    /// The instructions, with all jumps resolved; `None` if a label is not bound to an instruction, or a jump is too long.
    fn finish(mut self) -> Option<Vec<u8>> {
        for (from, label) in &self.jumps {
            let to = self.labels[label.0]?;
            let offset = i16::try_from(to as i64 - *from as i64 - 1).ok()?;
            self.code[*from][2..4].copy_from_slice(&offset.to_ne_bytes());
        }
        Some(self.code.concat())
    }
}

/// Calls bpf(2) with `attributes` as the bytes of `union bpf_attr`.
fn bpf(command: i32, attributes: &mut [u8]) -> Result<i32, Errno> {
    // SAFETY: the kernel reads and writes no more than the length that it is given; what the attributes point to is
    // alive, as every caller borrows it until this returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), attributes.len()) };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    i32::try_from(result).map_err(|_| Errno::INVAL)
}

/// Calls bpf(2) for a command whose result is a file descriptor.
fn bpf_descriptor(command: i32, attributes: &mut [u8]) -> Result<OwnedFd, Errno> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(bytes: &[u8]) -> [u8; 8] {
    (bytes.as_ptr() as u64).to_ne_bytes()
}

fn word(n: u32) -> [u8; 4] {
    n.to_ne_bytes()
}

fn descriptor(fd: &OwnedFd) -> [u8; 4] {
    fd.as_raw_fd().to_ne_bytes()
}

/// Type of a BPF map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Hash map: any key; memory is allocated as elements are added. For programs that see packets.
    Hash,
    /// Hash map: any key; memory is allocated at once. For programs at tracepoints: before Linux 6.1 the kernel logs a warning
    /// with a stack trace if they use [`Kind::Hash`], and with PREEMPT_RT refuses them.
    Fixed,
    /// Array: keys are numbers from 0; every element exists from the beginning.
    Array,
    /// LRU hash map: any key; when full, the least recently used element makes room. Memory is allocated at once.
    Recent,
    /// Ring of records for this process, without keys. Its greatest number of elements is its length in bytes: a power of two,
    /// and whole pages. Needs Linux 5.8.
    Ring,
}

impl Kind {
    /// Number of the map's type, and its flags.
    fn type_and_flags(self) -> (u32, u32) {
        const NO_PREALLOCATION: u32 = 1;
        match self {
            Self::Hash => (1, NO_PREALLOCATION),
            Self::Fixed => (1, 0),
            Self::Array => (2, 0),
            Self::Recent => (9, 0),
            Self::Ring => (27, 0),
        }
    }
}

/// A BPF map in the kernel.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl Map {
    pub(crate) fn new(kind: Kind, key_bytes: usize, value_bytes: usize, most: usize) -> Result<Self, Errno> {
        const MAP_CREATE: i32 = 0;
        let (kind, flags) = kind.type_and_flags();
        let numbers = [kind, key_bytes as u32, value_bytes as u32, most as u32, flags];
        let fd = bpf_descriptor(MAP_CREATE, &mut numbers.map(u32::to_ne_bytes).concat())?;
        Ok(Self { fd, key_bytes, value_bytes })
    }

    /// File descriptor by which the map's memory is mapped.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn element(&self, command: i32, key: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        let value = value.map_or([0; 8], address);
        let pieces: [&[u8]; 5] = [&descriptor(&self.fd), &[0; 4], &address(key), &value, &[0; 8]];
        bpf(command, &mut pieces.concat()).map(drop)
    }

    /// Sets the value of `key`, also if the key had no value before.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        const MAP_UPDATE_ELEM: i32 = 2;
        if key.len() != self.key_bytes || value.len() != self.value_bytes {
            return Err(Errno::INVAL);
        }
        self.element(MAP_UPDATE_ELEM, key, Some(value))
    }

    /// Reads the value of `key` into `value`; an error if the key has no value.
    pub(crate) fn read(&self, key: &[u8], value: &mut [u8]) -> Result<(), Errno> {
        const MAP_LOOKUP_ELEM: i32 = 1;
        if key.len() != self.key_bytes || value.len() != self.value_bytes {
            return Err(Errno::INVAL);
        }
        let into = (value.as_mut_ptr() as u64).to_ne_bytes();
        let pieces: [&[u8]; 5] = [&descriptor(&self.fd), &[0; 4], &address(key), &into, &[0; 8]];
        bpf(MAP_LOOKUP_ELEM, &mut pieces.concat()).map(drop)
    }

    /// Removes `key` with its value; no error if the key has none.
    pub(crate) fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        const MAP_DELETE_ELEM: i32 = 3;
        if key.len() != self.key_bytes {
            return Err(Errno::INVAL);
        }
        match self.element(MAP_DELETE_ELEM, key, None) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }
}

/// Attach type (BPF_TCX_EGRESS) for a program that sees the packets which a network device sends.
const TCX_EGRESS: u32 = 47;

/// True if a BPF link still attaches its program to a network device. A link loses its device if the device is removed, or if
/// another program detaches the link.
pub(crate) fn is_attached(link: &OwnedFd) -> Result<bool, Errno> {
    const OBJ_GET_INFO_BY_FD: i32 = 15;
    // Type, number, number of the program, padding, number of the device, place.
    let mut information = [0_u8; 24];
    let into = (information.as_mut_ptr() as u64).to_ne_bytes();
    let pieces: [&[u8]; 3] = [&descriptor(link), &word(information.len() as u32), &into];
    bpf(OBJ_GET_INFO_BY_FD, &mut pieces.concat())?;
    Ok(information[16..20] != [0; 4])
}

/// Detaches a BPF link as another program could, for tests.
#[cfg(test)]
pub(crate) fn detach(link: &OwnedFd) -> Result<(), Errno> {
    const LINK_DETACH: i32 = 34;
    bpf(LINK_DETACH, &mut descriptor(link).to_vec()).map(drop)
}

/// Number of BPF programs attached at the egress of the network device with this index.
#[cfg(test)]
pub(crate) fn programs_at_egress(device: u32) -> Result<u32, Errno> {
    const PROG_QUERY: i32 = 16;
    let mut ids = [0; 4 * 64];
    let pieces: [&[u8]; 6] =
        [&word(device), &word(TCX_EGRESS), &[0; 8], &(ids.as_mut_ptr() as u64).to_ne_bytes(), &word(64), &[0; 36]];
    let mut bytes = pieces.concat();
    bpf(PROG_QUERY, &mut bytes)?;
    Ok(u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]))
}

/// Type of a BPF program, named after the object that the program is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sees {
    /// The program sees a packet (BPF_PROG_TYPE_SCHED_CLS).
    Packets = 3,
    /// The program sees an event of the kernel, at a tracepoint (BPF_PROG_TYPE_TRACEPOINT).
    Event = 5,
}

/// A BPF program that the kernel has accepted.
#[derive(Debug)]
pub(crate) struct Program {
    fd: OwnedFd,
}

impl Program {
    pub(crate) fn load(sees: Sees, assembler: Assembler) -> Result<Self, Errno> {
        const PROG_LOAD: i32 = 5;
        let code = assembler.finish().ok_or(Errno::INVAL)?;
        let license = b"Apache-2.0\0";
        let mut name = [0; 16];
        name[..8].copy_from_slice(b"evenkeel");
        let load = |log: &mut [u8]| {
            let level = u32::from(!log.is_empty());
            let pieces: [&[u8]; 10] = [
                &word(sees as u32),
                &word((code.len() / 8) as u32),
                &address(&code),
                &address(license),
                &word(level),
                &word(log.len() as u32),
                &if log.is_empty() { [0; 8] } else { address(log) },
                &[0; 8],
                &name,
                &[0; 8],
            ];
            bpf_descriptor(PROG_LOAD, &mut pieces.concat())
        };
        match load(&mut []) {
            Ok(fd) => Ok(Self { fd }),
            Err(error) => {
                // Once more, for what the verifier has to say.
                let mut log = vec![0; 64 << 10];
                let fd = load(&mut log).inspect_err(|_| {
                    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                    tracing::debug!("the kernel refuses the BPF program: {}", String::from_utf8_lossy(&log[..end]));
                });
                fd.map(|fd| Self { fd }).map_err(|_| error)
            }
        }
    }

    /// File descriptor by which a traffic-control filter refers to the program; valid while this value lives.
    pub(crate) fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Attaches the program to the egress of a network device: the program sees every packet that the device sends, until the
    /// returned link is dropped or this process ends. Needs Linux 6.6.
    pub(crate) fn attach_to_egress(&self, device: u32) -> Result<OwnedFd, Errno> {
        const LINK_CREATE: i32 = 28;
        let pieces: [&[u8]; 5] = [&descriptor(&self.fd), &word(device), &word(TCX_EGRESS), &word(0), &[0; 16]];
        bpf_descriptor(LINK_CREATE, &mut pieces.concat())
    }

    /// Runs the program at every event of the tracepoint with the number `event`, on all processors, until the returned
    /// descriptor is dropped or this process ends.
    pub(crate) fn attach_to_event(&self, event: u64) -> Result<OwnedFd, Errno> {
        const TYPE_TRACEPOINT: u32 = 2;
        /// Length, in bytes, of the kernel's struct perf_event_attr in its first version, which has all fields that are
        /// needed.
        const LENGTH: u32 = 64;
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        const SET_PROGRAM: libc::Ioctl = 0x4004_2408;
        const ENABLE: libc::Ioctl = 0x2400;
        let pieces: [&[u8]; 5] = [&word(TYPE_TRACEPOINT), &word(LENGTH), &event.to_ne_bytes(), &[1, 0, 0, 0], &[0; 44]];
        let bytes = pieces.concat();
        let refused = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        // SAFETY: the kernel reads no more than the length that the attributes say, which are alive. Any process (-1), first
        // processor, no group.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, bytes.as_ptr(), -1, 0, -1, CLOSE_ON_EXEC) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(refused)?;
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        for (request, argument) in [(SET_PROGRAM, self.fd.as_raw_fd()), (ENABLE, 0)] {
            // SAFETY: both requests take a number and touch no memory of ours.
            if unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } < 0 {
                return Err(refused());
            }
        }
        Ok(fd)
    }

    /// Runs the program on one packet, with `context` as the kernel's struct __sk_buff of it. Returns the program's result,
    /// and leaves the program's changes in `context`.
    #[cfg(test)]
    pub(crate) fn run(&self, packet: &[u8], context: &mut [u8]) -> Result<i32, Errno> {
        const PROG_TEST_RUN: i32 = 10;
        let given = context.to_vec();
        let pieces: [&[u8]; 12] = [
            &descriptor(&self.fd),
            &[0; 4],
            &word(packet.len() as u32),
            &[0; 4],
            &address(packet),
            &[0; 8],
            &word(1),
            &[0; 4],
            &word(given.len() as u32),
            &word(context.len() as u32),
            &address(&given),
            &address(context),
        ];
        let mut bytes = pieces.concat();
        bpf(PROG_TEST_RUN, &mut bytes)?;
        Ok(i32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_standard_says() {
        let mut assembler = Assembler::default();
        let end = assembler.label();
        assembler.set(R0, -1);
        assembler.jump_when(When::Equal, R1, R2, end);
        assembler.store(Size::Half, R10, -8, 7);
        assembler.place(end);
        assembler.exit();
        assembler.add_atomically(R9, 8, R1);
        let code = assembler.finish().unwrap();
        assert_eq!(code[32..], [0xdb, 0x19, 8, 0, 0, 0, 0, 0]);
        assert_eq!(code[..8], [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(code[8..16], [0x1d, 0x21, 1, 0, 0, 0, 0, 0]);
        assert_eq!(code[16..24], [0x6a, 0x0a, 0xf8, 0xff, 7, 0, 0, 0]);
        assert_eq!(code[24..32], [0x95, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn only_a_hash_map_that_grows_allocates_memory_later() {
        assert_eq!(Kind::Hash.type_and_flags(), (1, 1));
        for kind in [Kind::Fixed, Kind::Array, Kind::Recent, Kind::Ring] {
            assert_eq!(kind.type_and_flags().1, 0, "{kind:?}");
        }
        assert_eq!(Kind::Fixed.type_and_flags().0, Kind::Hash.type_and_flags().0);
    }

    #[test]
    fn a_label_without_a_place_is_no_program() {
        let mut assembler = Assembler::default();
        let nowhere = assembler.label();
        assembler.jump(nowhere);
        assert!(assembler.finish().is_none());
    }
}
