//! Which stored values were flushed: by the generation in which each came, and without touching one.

/// How many values each database has here. A flush touches none of them: it begins a generation, and values of earlier
/// ones no longer count and are dropped in slices.
#[derive(Default)]
pub(crate) struct Flushes {
    pub(crate) databases: Vec<Database>,
    pub(crate) live: usize,
    pub(crate) flushed: usize,
    /// Values were flushed while others were loaded beside them.
    pub(crate) is_flushed_aside: bool,
    /// The first generation whose values were not all freed with the keyspace.
    pub(crate) freed_before: u32,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Database {
    pub(crate) live: usize,
    /// The first generation that was not flushed.
    pub(crate) since: u32,
}

impl Flushes {
    fn database(&mut self, known_as: u32) -> &mut Database {
        let at = known_as as usize;
        if at >= self.databases.len() {
            self.databases.resize(at + 1, Database::default());
        }
        &mut self.databases[at]
    }

    pub(crate) fn is_flushed(&self, known_as: u32, generation: u32) -> bool {
        self.databases.get(known_as as usize).is_some_and(|database| generation < database.since)
    }

    pub(crate) fn enter(&mut self, known_as: u32) {
        self.database(known_as).live += 1;
        self.live += 1;
    }

    pub(crate) fn leave(&mut self, known_as: u32, generation: u32) {
        if self.is_flushed(known_as, generation) {
            self.flushed -= 1;
        } else {
            self.database(known_as).live -= 1;
            self.live -= 1;
        }
    }
}
