/** The transition table of moves of sandboxes between hosts. The sandbox itself stays stopped or paused until its move has ended. */
import { defineMachine, type Transition } from '../../platform/lifecycle/machine.ts';
import { eventSql } from '../../platform/lifecycle/sql.ts';

export const MOVE_STATUSES = ['waiting', 'storing', 'placing', 'resuming', 'done', 'failed'] as const;
export type MoveStatus = (typeof MOVE_STATUSES)[number];
type MoveEvent = 'store' | 'place' | 'arrive' | 'stay' | 'finish' | 'fail';

// biome-ignore format: one row per line
export const MOVE_MACHINE = defineMachine<Transition<MoveStatus, MoveEvent>>({
  name: 'sandbox-move',
  table: 'sandbox_moves',
  transitions: [
    { from: ['waiting'], on: 'store', to: 'storing', note: 'it does not run, and another host has the capacity: its host uploads it' },
    { from: ['storing'], on: 'place', to: 'placing', note: 'it is in the store: the other host fetches it' },
    { from: ['placing'], on: 'arrive', to: 'resuming', note: 'the other host has it and is its host now; this one removes its copy' },
    { from: ['waiting', 'storing'], on: 'stay', to: 'resuming', note: 'the drain was ended: it runs again where it is' },
    { from: ['resuming'], on: 'finish', to: 'done', note: 'it runs again, did not run before, or could not be started (`error`)' },
    { from: ['waiting', 'storing', 'placing'], on: 'fail', to: 'failed', note: 'it is still on its host; the other one removes what it has' },
  ],
});
export const MOVE_EVENTS = eventSql(MOVE_MACHINE);

/** In progress, as the unique index has it. */
export const IN_PROGRESS = `('waiting', 'storing', 'placing', 'resuming')`;
