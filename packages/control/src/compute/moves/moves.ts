/**
 * Moves sandboxes that do not run from one host to another of the region (docs/decisions/0079-moving-sandboxes.md). The content goes through
 * the store as an artifact; the row of the sandbox names its old host until the new one has reported a complete copy, and is then changed by
 * one conditional UPDATE. Whatever ends in between, the sandbox is on exactly one host. A move is a row; this takes its next step.
 */
import { queryAll, queryOne, type Database, type Queryable, type SandboxRow } from '@releap/database';
import type { SandboxReport } from '@releap/contract/runner';
import type { Logger } from 'pino';
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { retryingDeadlocks } from '../../platform/lifecycle/apply.ts';
import { createWorkLoop, type WorkLoop } from '../../platform/work/work-loop.ts';
import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import { PLACE as PLACE_VOLUMES } from '../../storage/volumes/copy-statements.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import { allocate } from '../scheduler/allocate.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import { restart } from '../scheduler/restart.ts';
import { observeCopies } from './copies.ts';
import type { MoveDeadlines } from './deadlines.ts';
import { nextStep, type NextStep } from './next-step.ts';
import * as sql from './statements.ts';
import type { MoveRow } from './statements.ts';
import { Targets } from './targets.ts';

export interface Moves {
  /** Reports of sandboxes that their rows place on other hosts. */
  observe: (runnerId: string, reports: readonly SandboxReport[]) => Promise<void>;
  /** Asks for a pass over all moves, and returns at once. */
  kick: WorkLoop['kick'];
  /** Something has changed that a move in progress may wait for. */
  changed: () => void;
  sweep: WorkLoop['sweep'];
  close: WorkLoop['close'];
}

export interface MovesOptions {
  database: Database;
  lifecycle: Lifecycle;
  artifacts: Artifacts;
  /** Sandboxes, as hosts are assigned them. */
  onSandboxes: (changes: readonly AssignmentChange[]) => void;
  onVolumes: (changes: readonly AssignmentChange[]) => void;
  onCapacityReleased: () => void;
  /** A sandbox runs again, after so many seconds. */
  onPaused: (seconds: number) => void;
  limits: { overcommit: Overcommit; moves: MoveDeadlines };
  log: Logger;
}

/** A host uploads few at a time: what ran before comes first. */
const STORED_AT_ONCE = 2;
const isBusyHost = ({ source_id: source, resumes }: MoveRow, moves: readonly MoveRow[]): boolean =>
  !resumes &&
  moves.filter((one) => one.source_id === source && one.status === 'storing').length >= STORED_AT_ONCE;

/** What a transaction has changed, announced after its commit. */
interface Changed {
  rows: readonly SandboxRow[];
  sandboxes?: readonly AssignmentChange[];
  artifacts?: readonly AssignmentChange[];
  volumes?: readonly AssignmentChange[];
}

export function createMoves(options: MovesOptions): Moves {
  const { database, lifecycle, artifacts, limits, log } = options;
  const { storeMs, placeMs, resumeMs, retryMs } = limits.moves;
  const { pool } = database;
  /** The last pass has found moves in progress. */
  let isBusy = false;

  async function pass(): Promise<void> {
    await queryAll(pool, sql.FORGET_COPIES);
    const moves = await queryAll(pool, sql.MOVES);
    isBusy = moves.length > 0;
    const targets = new Targets(database, limits.overcommit, moves);
    for (const move of moves) {
      const step = nextStep(move);
      if (step === undefined || (step.do === 'store' && isBusyHost(move, moves))) continue;
      try {
        await take(move, step, targets);
      } catch (error) {
        // The others continue; it is tried again in the next pass.
        log.warn(
          { err: error, move: move.id, vm: move.sandbox_id, step: step.do },
          'a step of a move failed',
        );
      }
    }
  }

  async function take(move: MoveRow, step: NonNullable<NextStep>, targets: Targets): Promise<void> {
    switch (step.do) {
      case 'store':
        return store(move, targets);
      case 'place':
        return place(move);
      case 'arrive':
        return arrive(move);
      case 'stay':
        return stay(move);
      case 'restart':
        return restartMoved(move);
      case 'wait':
        return wait(move, step.error);
      case 'finish':
        return finish(move, step);
      case 'fail':
        return fail(move, step.error ?? 'no reason was given');
    }
  }

  /** One transaction, if no other server takes the step. */
  async function change(
    move: MoveRow,
    work: (on: Queryable) => Promise<Changed | undefined>,
    run: <T>(work: (on: Queryable) => Promise<T>) => Promise<T> = (inner) =>
      retryingDeadlocks(() => database.transaction(inner)),
  ): Promise<boolean> {
    const changed = await run(async (on) =>
      (await queryOne(on, sql.LOCK, [move.id, move.status])) === undefined ? undefined : work(on),
    );
    if (changed === undefined) return false;
    artifacts.announce(changed.artifacts ?? []);
    if (changed.volumes !== undefined && changed.volumes.length > 0) options.onVolumes(changed.volumes);
    if (changed.rows.length > 0) lifecycle.announce(changed.rows);
    if (changed.sandboxes !== undefined) options.onSandboxes(changed.sandboxes);
    log.info({ move: move.id, vm: move.sandbox_id, was: move.status }, 'a sandbox is being moved');
    return true;
  }

  async function store(move: MoveRow, targets: Targets): Promise<void> {
    const chosen = await targets.choose(move);
    if ('reason' in chosen) return wait(move, chosen.reason);
    const { id, sandbox_id: sandboxId, source_id: runnerId, project_id: projectId } = move;
    const stores = await change(move, async (on) => {
      const rows = await lifecycle.applyWithin(on, 'move', [
        { id: sandboxId, runner_id: runnerId, begin_move: id },
      ]);
      // It was started, forked or deleted meanwhile.
      if (rows.length === 0) return undefined;
      await queryAll(on, sql.STORE, [id, chosen.host.id, storeMs]);
      const maxMib = 2 * move.scratch_mib + move.mem_mib;
      return {
        rows,
        artifacts: await artifacts.storeSandbox(on, { id, sandboxId, projectId, runnerId, maxMib }),
      };
    });
    if (stores) move.status = 'storing';
  }

  async function place(move: MoveRow): Promise<void> {
    const { id, sandbox_id: sandboxId, target_id: target } = move;
    if (target === null) throw new Error('the move has no target');
    // That of the sandbox's row once it names the target.
    const generation = move.generation + 1;
    await change(move, async (on) => {
      await queryAll(on, sql.PLACE, [id, generation, placeMs]);
      return {
        rows: [],
        artifacts: await artifacts.fetch(on, id, target),
        sandboxes: [{ id: sandboxId, runner_id: target, generation, assigned_to_runner: true }],
      };
    });
  }

  /** The row names the target from here on. Its allocation moves with it. */
  async function arrive(move: MoveRow): Promise<void> {
    const { id, sandbox_id: sandboxId, source_id: source, target_id: target, volume_count: volumes } = move;
    if (target === null) throw new Error('the move has no target');
    const moved = await change(
      move,
      async (on) => {
        const rows = await lifecycle.applyWithin(on, 'moved', [
          { id: sandboxId, runner_id: source, move_id: id, generation: move.generation, place_on: target },
        ]);
        const [row] = rows;
        // The next pass finds out what was first.
        if (row === undefined) return undefined;
        await queryAll(on, sql.ARRIVE, [id, row.generation, resumeMs]);
        await artifacts.release(on, [id]);
        return {
          rows,
          volumes: volumes === 0 ? [] : await queryAll(on, PLACE_VOLUMES, [[sandboxId]]),
          sandboxes: [
            { id: sandboxId, runner_id: source, generation: row.generation, assigned_to_runner: true },
          ],
        };
      },
      (work) => allocate(database, work),
    );
    if (!moved) return;
    log.info({ vm: sandboxId, source, target }, 'a sandbox was moved to another host');
    options.onCapacityReleased();
    if (move.resumes) await restartMoved({ ...move, status: 'resuming', runner_id: target });
  }

  /** The drain was ended: it runs again where it is. */
  async function stay(move: MoveRow): Promise<void> {
    const { id, sandbox_id: sandboxId } = move;
    const stays = await change(move, async (on) => {
      const rows = await lifecycle.applyWithin(on, 'move-failed', [{ id: sandboxId, move_id: id }]);
      await queryAll(on, sql.STAY, [id, resumeMs]);
      await artifacts.release(on, [id]);
      return { rows };
    });
    if (stays) await restartMoved(move);
  }

  async function restartMoved(move: MoveRow): Promise<void> {
    const { id, sandbox_id: sandboxId, runner_id: host } = move;
    if (host === null) throw new Error('the sandbox has no host');
    const event = move.sandbox_status === 'paused' && move.has_memory ? 'resume' : 'start';
    const outcome = await restart({ database, lifecycle, limits }, event, { id: sandboxId, runner_id: host });
    if (outcome === undefined) return;
    const started = 'moved' in outcome;
    await queryAll(pool, sql.WAIT, [id, started ? null : outcome.refused, retryMs, started ? 1 : 0]);
  }

  async function wait({ id, error }: MoveRow, reason: string): Promise<void> {
    await queryAll(pool, sql.WAIT, [id, reason, retryMs, 0]);
    if (reason !== error) log.info({ move: id, reason }, 'the move of a sandbox waits');
  }

  async function finish(
    move: MoveRow,
    { error, runs = false }: { error: string | null; runs?: boolean },
  ): Promise<void> {
    const [row] = await database.transaction(async (on) =>
      (await queryOne(on, sql.LOCK, [move.id, move.status])) === undefined
        ? []
        : queryAll(on, sql.FINISH, [move.id, error, runs]),
    );
    if (row === undefined) return;
    if (row.pause_ms !== null) options.onPaused(row.pause_ms / 1000);
    log.info(
      { move: move.id, vm: move.sandbox_id, pauseMs: row.pause_ms, error },
      'the move of a sandbox has ended',
    );
  }

  /** It stays where it is. */
  async function fail(move: MoveRow, error: string): Promise<void> {
    const { id, sandbox_id: sandboxId } = move;
    const failed = await change(move, async (on) => {
      const rows = await lifecycle.applyWithin(on, 'move-failed', [{ id: sandboxId, move_id: id }]);
      const [row] = await queryAll(on, sql.FAIL, [id, error]);
      await artifacts.release(on, [id]);
      return {
        rows,
        sandboxes:
          row === undefined || row.copy_on === null
            ? []
            : [
                {
                  id: sandboxId,
                  runner_id: row.copy_on,
                  generation: row.generation,
                  assigned_to_runner: true,
                },
              ],
      };
    });
    if (failed) log.warn({ move: id, vm: sandboxId, error }, 'a sandbox was not moved');
  }

  const loop = createWorkLoop({
    step: pass,
    onError: (error) => log.error({ err: error }, 'moves could not be taken on'),
  });
  return {
    async observe(runnerId, reports) {
      if (await observeCopies(database, runnerId, reports)) loop.kick();
    },
    kick: loop.kick,
    changed() {
      if (isBusy) loop.kick();
    },
    sweep: loop.sweep,
    close: loop.close,
  };
}
