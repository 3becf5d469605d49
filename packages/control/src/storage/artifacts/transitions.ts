/** The transition table of the locations of artifacts: whether a host has its copy yet. */
import { defineMachine, type Transition } from '../../platform/lifecycle/machine.ts';
import { eventSql } from '../../platform/lifecycle/sql.ts';

// biome-ignore format: one row per line
export const LOCATION_MACHINE = defineMachine<Transition<'pending' | 'present', 'observe:present' | 'place'>>({
  name: 'artifact-location',
  table: 'artifact_locations',
  transitions: [
    { from: ['pending'], on: 'observe:present', to: 'present' },
    { from: ['pending', 'present'], on: 'place', to: 'pending', note: 'a sandbox needs a copy that its host was to remove' },
  ],
});
export const LOCATION_EVENTS = eventSql(LOCATION_MACHINE);
