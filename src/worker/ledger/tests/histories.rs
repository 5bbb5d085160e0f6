//! Random histories, against a reference that keeps every unfinished record.

use super::*;

#[derive(Debug, Clone, Copy)]
enum What {
    Index,
    Patch,
    SpoilingPatch,
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    /// A record of one of a few documents comes, after a gap.
    Take {
        doc: u8,
        gap: i64,
        what: What,
    },
    /// A bad record comes.
    Bad,
    /// Something else was read, up to this far ahead.
    Pass(i64),
    HandOut {
        documents: usize,
        bytes: usize,
    },
    /// The outcomes of the batch in flight, in turn.
    Settle(Vec<u8>),
    /// The oldest dead letter in flight is acknowledged.
    Deliver,
    /// The records of the oldest waiting fold arrive, or cannot be read.
    Reread {
        fails: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..5, 0_i64..3, what()).prop_map(|(doc, gap, what)| Step::Take { doc, gap, what }),
        1 => Just(Step::Bad),
        1 => (1_i64..4).prop_map(Step::Pass),
        3 => (1_usize..5, 0_usize..3_000).prop_map(|(documents, bytes)| Step::HandOut { documents, bytes }),
        4 => prop::collection::vec(0_u8..8, 1..6).prop_map(Step::Settle),
        2 => Just(Step::Deliver),
        2 => prop::bool::weighted(0.3).prop_map(|fails| Step::Reread { fails }),
    ]
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![2 => Just(What::Index), 1 => Just(What::Patch), 1 => Just(What::SpoilingPatch)]
}

/// A ledger, and every unfinished record as the reference.
struct Checked {
    ledger: Ledger,
    unfinished: BTreeSet<i64>,
    /// All records.
    log: BTreeMap<i64, (What, Write)>,
    /// Offsets of each document's unfinished records.
    of_document: BTreeMap<String, BTreeSet<i64>>,
    batch: Option<Vec<Entry>>,
    dead_letters: VecDeque<(i64, Option<DocId>, Vec<i64>)>,
    rereads: VecDeque<Reread>,
    next: i64,
    watermark: Option<i64>,
}

impl Checked {
    fn new() -> Self {
        Self {
            ledger: ledger(),
            unfinished: BTreeSet::new(),
            log: BTreeMap::new(),
            of_document: BTreeMap::new(),
            batch: None,
            dead_letters: VecDeque::new(),
            rereads: VecDeque::new(),
            next: 100,
            watermark: None,
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Take { doc, gap, what } => {
                let (name, offset) = (format!("d{doc}"), self.next + gap);
                let write = match what {
                    What::Index => index(&name, offset),
                    What::Patch => patch(&name, offset),
                    What::SpoilingPatch => spoiling_patch(&name, offset),
                };
                self.log.insert(offset, (*what, write.clone()));
                self.unfinished.insert(offset);
                self.of_document.entry(name).or_default().insert(offset);
                self.next = offset + 1;
                self.ledger.take(write, at(1));
                self.send_rejected();
            }
            Step::Bad => {
                self.ledger.dead_letter_queued(self.next);
                self.ledger.read_up_to(self.next + 1);
                self.unfinished.insert(self.next);
                self.dead_letters.push_back((self.next, None, vec![self.next]));
                self.next += 1;
            }
            Step::Pass(ahead) => {
                self.next += ahead;
                self.ledger.read_up_to(self.next);
            }
            Step::HandOut { documents, bytes } => {
                if self.batch.is_none() {
                    let batch = self.ledger.hand_out(*documents, *bytes, NOW);
                    assert!(batch.len() <= *documents);
                    self.batch = Some(batch);
                    self.send_rejected();
                    self.rereads.extend(self.ledger.take_rereads(9));
                }
            }
            Step::Settle(choices) => self.settle(choices),
            Step::Reread { fails } => self.reread(*fails),
            Step::Deliver => {
                if let Some((first, id, offsets)) = self.dead_letters.pop_front() {
                    self.ledger.delivered(first, id.as_ref());
                    offsets.iter().for_each(|offset| assert!(self.unfinished.remove(offset)));
                }
            }
        }
        self.check();
    }

    fn settle(&mut self, choices: &[u8]) {
        let Some(batch) = self.batch.take() else { return };
        let mut settled = Vec::new();
        let mut undeliverable = 0;
        for (n, entry) in batch.into_iter().enumerate() {
            let outcome = match choices[n % choices.len()] {
                0 => unanswered(),
                3 => unreadable(),
                4 => set_back(),
                5 if entry.fold.separable().is_some() => refused_fold(),
                1 => Outcome::Parked { until: position(entry.fold.last.offset() + 3) },
                2 => {
                    let offsets = self.finish(&entry.id, &entry.fold);
                    self.dead_letters.push_back((entry.fold.first.offset(), Some(entry.id.clone()), offsets));
                    undeliverable += 1;
                    refused()
                }
                _ => {
                    for offset in self.finish(&entry.id, &entry.fold) {
                        assert!(self.unfinished.remove(&offset));
                    }
                    DONE
                }
            };
            settled.push(Settled { entry, outcome, touched: AffectedShards::default() });
        }
        let settlement = self.ledger.settle(settled, NOW);
        assert_eq!(settlement.undeliverable.len(), undeliverable);
        self.send_rejected();
        self.rereads.extend(self.ledger.take_rereads(9));
    }

    fn reread(&mut self, fails: bool) {
        let Some(Reread { id, offsets }) = self.rereads.pop_front() else { return };
        let records = offsets.iter().map(|offset| (self.log[offset].1.clone(), record(id.as_str(), *offset)));
        let records = if fails { Err("gone".to_owned()) } else { Ok(records.collect()) };
        assert_eq!(self.ledger.reread(&id, records, NOW), 0);
        self.send_rejected();
    }

    /// The unfinished records that a fold covers.
    fn finish(&mut self, id: &DocId, fold: &Fold) -> Vec<i64> {
        let (first, last) = (fold.first.offset(), fold.last.offset());
        let open = self.of_document.get_mut(id.as_str()).unwrap();
        let offsets: Vec<i64> = open.range(first..=last).copied().collect();
        offsets.iter().for_each(|offset| assert!(open.remove(offset)));
        assert_eq!(offsets.len(), fold.records as usize, "{id} {fold:?}");
        offsets
    }

    fn send_rejected(&mut self) {
        for letter in self.ledger.take_rejected() {
            let offsets = self.finish(&letter.id, &letter.fold);
            let is_unread = letter.refusal.detail.contains("could not be tried one by one");
            let spoils = |offset| matches!(self.log[offset].0, What::SpoilingPatch);
            assert!(is_unread || offsets.iter().all(spoils), "good records are in {letter:?}");
            self.dead_letters.push_back((letter.fold.first.offset(), Some(letter.id.clone()), offsets));
        }
    }

    fn check(&mut self) {
        let watermark = self.ledger.watermark();
        assert!(watermark >= self.watermark, "went back from {:?} to {watermark:?}", self.watermark);
        self.watermark = watermark;
        let oldest = self.unfinished.first().copied();
        if oldest.is_some() {
            // Equal, not just below: a watermark that lags makes the next owner read again for nothing.
            assert_eq!(watermark, oldest);
        }
        assert_eq!(self.ledger.has_work(), self.ledger.pending() + self.ledger.in_flight() > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn watermark_is_always_the_first_unfinished_record(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut checked = Checked::new();
        steps.iter().for_each(|step| checked.run(step));
        // From here on everything succeeds.
        for _ in 0..60 {
            checked.run(&Step::Pass(10));
            checked.run(&Step::HandOut { documents: 9, bytes: usize::MAX });
            checked.run(&Step::Settle(vec![7]));
            checked.run(&Step::Reread { fails: false });
            while !checked.dead_letters.is_empty() {
                checked.run(&Step::Deliver);
            }
        }
        prop_assert!(checked.unfinished.is_empty());
        prop_assert_eq!(checked.ledger.bytes(), 0);
        prop_assert_eq!(checked.ledger.documents(), 0);
        prop_assert!(checked.ledger.carries.is_empty());
        prop_assert_eq!(checked.ledger.watermark(), Some(checked.next));
    }
}
