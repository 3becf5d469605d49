/** The transition table as a model: what one trigger makes of one sandbox, with no SQL. */
import { decide, type SandboxFacts, type SandboxEvent } from '../../src/compute/sandboxes/transitions.ts';

/** The move that `move` begins. */
export const MOVE = '00000000-0000-4000-8000-000000000004';

export interface Said {
  manifest_name?: string;
  /** What a runner says of kept memory. */
  memory?: boolean;
  memory_blocked?: string;
}

/** The sandbox afterwards; the same object when no row applies. */
export function step<Facts extends SandboxFacts>(
  sandbox: Facts,
  trigger: SandboxEvent,
  said: Said = {},
): Facts {
  const row = decide(trigger, sandbox);
  if (row === undefined || (row.to === 'same' && row.effects === undefined && row.wants === undefined))
    return sandbox;
  const next = { ...sandbox };
  if (row.to !== 'same') next.status = row.to;
  if (row.wants === 'reclaim')
    next.desired = sandbox.persistent && sandbox.manifest_name !== null ? 'stopped' : 'deleted';
  else if (row.wants !== undefined && row.wants !== 'same') next.desired = row.wants;
  for (const effect of row.effects ?? []) {
    if (effect === 'memory') next.has_memory = said.memory ?? true;
    if (effect === 'check-memory') next.has_memory = next.has_memory && (said.memory ?? true);
    if (effect === 'forget-memory') next.has_memory = false;
    if (effect === 'memory' || effect === 'check-memory') next.memory_blocked = said.memory_blocked ?? null;
    if (effect === 'forget-memory' || effect === 'use-memory') next.memory_blocked = null;
    if (effect === 'memory' || effect === 'forget-memory') next.start_from = 'disk';
    if (effect === 'use-memory') next.start_from = 'memory';
    if (effect === 'fork-taken') next.pending_fork = null;
    if (effect === 'move') next.move_id = MOVE;
    if (effect === 'end-move') next.move_id = null;
  }
  if (said.manifest_name !== undefined) next.manifest_name = said.manifest_name;
  return next;
}
