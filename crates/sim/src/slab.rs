//! A slab: stores values under numbers. The number of a removed value is used again.

#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores a value. Returns the value's number.
    #[inline]
    pub(crate) fn insert(&mut self, what: T) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(what);
        place
    }

    /// Removes and returns the value with this number; `None` if no value has this number.
    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        let what = self.places.get_mut(place).and_then(Option::take)?;
        self.free.push(number as u32);
        Some(what)
    }

    /// The value with this number; `None` if no value has this number.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.places.get(usize::try_from(number).ok()?)?.as_ref()
    }

    /// The value with this number, mutable; `None` if no value has this number.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// Number of stored values.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
