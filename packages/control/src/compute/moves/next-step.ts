/** What is done next with a move. Pure. */
import type { MoveRow } from './statements.ts';

export type NextStep =
  | { do: 'store' | 'place' | 'arrive' | 'stay' | 'restart' }
  | { do: 'fail' | 'finish'; error: string | null; runs?: boolean }
  | { do: 'wait'; error: string }
  | undefined;

const DRAIN_ENDED = 'the drain was ended';
const RESTING = ['stopped', 'paused'];
const ENDED = ['deleting', 'deleted', 'failed'];
/** It still is, or is becoming, what it was when it was drained. */
const LEAVING = ['pausing', 'stopping', 'running', 'assigned', 'building', 'booting', 'lost'];
const RESTARTS_MAX = 3;
const UPLOADS_MAX = 3;

export function nextStep(move: MoveRow): NextStep {
  switch (move.status) {
    case 'waiting':
      return waiting(move);
    case 'storing':
    case 'placing':
      return transfer(move);
    case 'resuming':
      return resuming(move);
    default:
      return undefined;
  }
}

function waiting(move: MoveRow): NextStep {
  const { sandbox_status: status, source_id: source, runner_id: host } = move;
  if (ENDED.includes(status)) return { do: 'fail', error: `the sandbox is ${status}` };
  if (host !== source) return { do: 'fail', error: 'the sandbox is on another host' };
  const isResting = RESTING.includes(status);
  if (!move.leaving) {
    if (isResting && move.resumes) return { do: 'stay' };
    if (isResting || status === 'running') return { do: 'fail', error: DRAIN_ENDED };
  }
  if (LEAVING.includes(status) || !move.due) return undefined;
  if (move.is_forked) return { do: 'wait', error: 'a fork of it is pending' };
  if (move.memory_blocked !== null)
    return { do: 'wait', error: `its memory cannot be resumed: ${move.memory_blocked}` };
  if (move.uncommitted) return { do: 'wait', error: 'its host is committing changes of its volumes' };
  return { do: 'store' };
}

function transfer(move: MoveRow): NextStep {
  const { status, sandbox_status: sandbox, is_moving: isMoving, source_id: source, runner_id: host } = move;
  if (!RESTING.includes(sandbox) || !isMoving || host !== source)
    return { do: 'fail', error: `the sandbox is ${sandbox}` };
  // What is in the store arrives soon.
  if (status === 'storing' && !move.leaving && !move.stored)
    return move.resumes ? { do: 'stay' } : { do: 'fail', error: DRAIN_ENDED };
  if (move.target_lost) return { do: 'fail', error: 'its new host has not been heard from' };
  if (status === 'placing' && move.error !== null) return { do: 'fail', error: move.error };
  if (status === 'placing' && move.copy_on === null)
    return { do: 'fail', error: 'its new host has removed its copy' };
  if (status === 'storing' && move.stored) return { do: 'place' };
  if (status === 'placing' && move.arrived) return { do: 'arrive' };
  const hasFailed = status === 'storing' && move.failed_uploads >= UPLOADS_MAX;
  if (!move.overdue && !hasFailed) return undefined;
  const what = status === 'storing' ? 'uploaded' : 'placed';
  return {
    do: 'fail',
    error: `it was not ${what} in time${move.transfer_error === null ? '' : `: ${move.transfer_error}`}`,
  };
}

function resuming(move: MoveRow): NextStep {
  const { sandbox_status: status } = move;
  if (!move.resumes) return { do: 'finish', error: null };
  if (status === 'running') return { do: 'finish', error: null, runs: true };
  if (!RESTING.includes(status))
    return ENDED.includes(status) || status === 'lost'
      ? { do: 'finish', error: `the sandbox is ${status}` }
      : undefined;
  const hasFailed = move.attempts > 0 && move.sandbox_error !== null;
  // It has run, and its client has stopped or paused it since.
  if (move.attempts > 0 && !hasFailed) return { do: 'finish', error: null };
  if (move.overdue || (hasFailed && move.attempts >= RESTARTS_MAX))
    return { do: 'finish', error: move.sandbox_error ?? move.error ?? 'it was not started again in time' };
  return move.due ? { do: 'restart' } : undefined;
}
