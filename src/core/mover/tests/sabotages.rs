//! Each weakening of mover and ledger breaks one of the histories, or a counterexample of its own if the other rules
//! compensate for it in every history.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::histories::{Seen, World};
use super::{counterexamples as table, partitions, refeed, refused, split_folds, stale, tally};
use crate::base::sabotage::{Sabotage, with};

/// Enough for each sabotage to break one.
const HISTORIES_TO_BREAK: u64 = 5_000;

#[test]
fn every_sabotage_of_mover_and_ledger_is_found() {
    // Letters under way, sending again, a task's cache and claim, what belongs to a change of the map, and most of the tally: nothing that is run here.
    let elsewhere = [
        Sabotage::CacheSurvivesAssignment,
        Sabotage::ChangedIsForgotten,
        Sabotage::ReadAsOfBefore,
        Sabotage::SkipRetry,
        Sabotage::DeleteBeforeSeen,
        Sabotage::ResumedSweepsAtOnce,
        Sabotage::ActivateUnconfirmed,
        Sabotage::ClaimIsNotAsked,
        Sabotage::LettersAreNotAwaited,
        Sabotage::HistoryIsCutToOne,
        Sabotage::HistoryIsCutToTwo,
        Sabotage::HistoryIsOneBase,
        Sabotage::InPlaceDespiteFacets,
        Sabotage::InPlaceHasNoEdges,
    ];
    let in_the_table: [(_, fn()); 17] = [
        (Sabotage::StaleBaseIsBelieved, stale::reads_from_a_cut_off_node_revert_no_write),
        (Sabotage::PartitionsAreComparable, partitions::records_of_another_partition_are_dead_lettered),
        (Sabotage::RefusedInPlaceIsNotRecorded, tally::refused_document_keeps_its_counts),
        (Sabotage::FetchedIsNotRecorded, refeed::resuming_owner_writes_the_fetched_document_without_asking),
        (Sabotage::GoneIsNotRecorded, refeed::recorded_gone_document_is_not_placed_by_a_zombie),
        (Sabotage::OldAnswerIsBelieved, refeed::answer_from_before_a_later_refeed_or_delete_is_refetched),
        (Sabotage::FinishingSweepsAnyway, table::finishing_a_lost_records_decision_keeps_the_last_copy),
        (Sabotage::RefusedIsDeleted, refused::refusal_allows_for_a_late_copy),
        (Sabotage::RefusedStays, refused::mended_document_follows_its_refused_record),
        (Sabotage::MisplacedIsResumed, refused::decision_about_another_document_is_corrected),
        (
            Sabotage::ResumedIsNotTakenApart,
            split_folds::a_decision_made_without_a_bad_record_is_resumed_without_it,
        ),
        (Sabotage::MissingIsDeleted, refused::patch_of_a_missing_document_allows_for_a_late_copy),
        (Sabotage::SecondLookIsBelieved, table::document_that_moves_during_two_reads_is_not_missing),
        (Sabotage::InPlaceOverItsOwnRecord, refused::fold_over_the_placements_own_record_is_not_in_place),
        (Sabotage::WrittenIsDone, table::already_written_copy_does_not_hide_a_move_there_and_back),
        (Sabotage::OldRecordsDecide, table::record_up_to_the_recorded_position_does_not_decide_again),
        (Sabotage::IgnoreNewerLeftover, table::newer_copy_in_a_leftover_is_neither_copied_nor_ignored),
    ];
    let mut not_found = Vec::new();
    for &sabotage in <Sabotage as clap::ValueEnum>::value_variants() {
        let breaks = |seed: &u64| {
            let mut seen = Seen::new();
            let mut world = World::new(*seed, &mut seen);
            catch_unwind(AssertUnwindSafe(|| with(sabotage, || world.run()))).is_err()
        };
        let is_found = match in_the_table.iter().find(|(other, _)| *other == sabotage) {
            _ if elsewhere.contains(&sabotage) => continue,
            Some((_, counterexample)) => catch_unwind(|| with(sabotage, counterexample)).is_err(),
            None => (0..HISTORIES_TO_BREAK).any(|seed| breaks(&seed)),
        };
        if !is_found {
            not_found.push(sabotage);
        }
    }
    assert_eq!(not_found, []);
}
