/** The transition table of images. */
import type { ImageStatus } from '@releap/contract';
import { defineMachine, type Transition } from '../../platform/lifecycle/machine.ts';
import { eventSql } from '../../platform/lifecycle/sql.ts';

// biome-ignore format: one row per line
export const IMAGE_MACHINE = defineMachine<Transition<ImageStatus, 'put' | 'built' | 'fail' | 'retry'>>({
  name: 'image',
  table: 'images',
  transitions: [
    { from: ['pending', 'ready', 'failed'], on: 'put', to: 'pending', note: 'its name gets a new source; what it was built to stays until it is built again' },
    { from: ['pending'], on: 'built', to: 'ready', note: 'unless a newer build has replaced this one' },
    { from: ['pending'], on: 'fail', to: 'failed', note: 'unless a newer build has replaced this one; it keeps what it was built to before' },
    { from: ['failed'], on: 'retry', to: 'pending', note: 'built-in images' },
  ],
});
export const IMAGE_EVENTS = eventSql(IMAGE_MACHINE);
