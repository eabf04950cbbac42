//! Columns of numbers as bytes.

use evenkeel_wire::{Input, length, put};

/// Mark of a column whose numbers are of different lengths. The mark of any other column is the length of its numbers in bits.
const VARINTS: u8 = 65;

/// Appends a column of numbers, at least one: each as [`put`] writes it, or the distances from the smallest in as many bits as
/// the largest distance needs, whichever is shorter. `column` is memory to use.
pub(crate) fn put_column(out: &mut Vec<u8>, column: &mut Vec<u64>, values: impl Iterator<Item = u64>) {
    column.clear();
    column.extend(values);
    let (mut least, mut most, mut varints) = (u64::MAX, 0_u64, 0_usize);
    for &value in column.iter() {
        least = least.min(value);
        most = most.max(value);
        varints += length(value);
    }
    let width = u64::BITS - most.saturating_sub(least).leading_zeros();
    let packed = length(least) + (column.len() * width as usize).div_ceil(8);
    if varints < packed {
        out.push(VARINTS);
        for &value in column.iter() {
            put(out, value);
        }
        return;
    }
    out.push(width as u8);
    put(out, least);
    let (mut pending, mut bits) = (0_u128, 0_u32);
    for &value in column.iter() {
        pending |= u128::from(value - least) << bits;
        bits += width;
        while bits >= 8 {
            out.push(pending as u8);
            pending >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out.push(pending as u8);
    }
}

/// Reads a column of `count` numbers.
pub(crate) fn column(input: &mut Input<'_>, count: usize) -> Option<Vec<u64>> {
    let width = input.byte()?;
    let mut column = Vec::with_capacity(count);
    if width == VARINTS {
        for _ in 0..count {
            column.push(input.number()?);
        }
        return Some(column);
    }
    if width > 64 {
        return None;
    }
    let least = input.number()?;
    let mut packed = input.take((count * usize::from(width)).div_ceil(8))?.iter();
    let (width, mask) = (u32::from(width), (1_u128 << width) - 1);
    let (mut pending, mut bits) = (0_u128, 0_u32);
    for _ in 0..count {
        while bits < width {
            pending |= u128::from(*packed.next()?) << bits;
            bits += 8;
        }
        column.push(least.checked_add((pending & mask) as u64)?);
        pending >>= width;
        bits -= width;
    }
    Some(column)
}
