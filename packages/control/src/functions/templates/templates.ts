/**
 * Templates of versions with `fn_ready`: a full snapshot of an instance whose handler listens. New instances are restored from it on
 * hosts whose machine can, which have it or fetch it from the store; otherwise they start the handler.
 */
import { newUuid } from '@releap/contract';
import type { Database, Queryable } from '@releap/database';
import type { Logger } from 'pino';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Overcommit } from '../../compute/scheduler/overcommit.ts';
import { readSomeHosts } from '../../compute/scheduler/hosts.ts';
import { choose, isOvercommitted } from '../../compute/scheduler/placement.ts';
import { insertSnapshot, snapshotRefusal } from '../../compute/snapshots/create.ts';
import { keepSnapshot } from '../../compute/snapshots/queries.ts';
import { platformMismatch } from '../../compute/snapshots/restore.ts';
import type { Snapshots } from '../../compute/snapshots/snapshots.ts';
import type { CreateSandbox, Source } from '../../compute/sandboxes/insert.ts';
import { FUNCTIONS } from '../instances/new-instance.ts';
import * as rows from './template-rows.ts';

const RECHECK_MS = 1_000;

export interface FunctionTemplates {
  /**
   * Captures an instance as a template of its version, or waits for the capture that another server has begun.
   * @returns why there is none; null when there is one
   */
  capture(versionId: string, sandboxId: string, signal: AbortSignal): Promise<string | null>;
  /**
   * The source of a new instance and the host for it, locked until the end of the transaction; undefined: no template can be
   * restored now.
   */
  source(
    client: Queryable,
    versionId: string,
    spec: CreateSandbox['spec'],
  ): Promise<{ source: Source; runnerId: string } | undefined>;
  /** A template could not be restored on a host. */
  discard(snapshotId: string, runnerId: string): Promise<void>;
  /** Removes templates that no version uses, or that their hosts can restore no longer. */
  sweep(): Promise<void>;
}

export interface FunctionTemplatesOptions {
  changes: ChangeNotifier;
  database: Database;
  limits: { overcommit: Overcommit; snapshotDeadlineMs: number };
  snapshots: Snapshots;
  log: Logger;
}

export function createFunctionTemplates({
  changes,
  database,
  limits,
  log,
  snapshots,
}: FunctionTemplatesOptions): FunctionTemplates {
  async function begin(versionId: string, sandboxId: string): Promise<{ id: string } | { refused: string }> {
    const begun = await database.transaction(async (client) => {
      const sandbox = await rows.lockSource(client, sandboxId);
      if (sandbox === undefined) return { refused: 'its instance is gone' };
      const before = await rows.begunTemplate(client, sandboxId);
      if (before !== undefined) return { id: before };
      const refused = snapshotRefusal(sandbox, 'full');
      if (refused !== undefined) return { refused };
      const id = newUuid();
      const row = await insertSnapshot(client, {
        id,
        jobId: newUuid(),
        // A tenant's name has no slash.
        name: `${FUNCTIONS}/${id}`,
        sandbox,
        kind: 'full',
        ownerService: FUNCTIONS,
        deadlineMs: limits.snapshotDeadlineMs,
      });
      await rows.insertTemplate(client, versionId, row);
      return { id, row };
    });
    if ('row' in begun) snapshots.announce([begun.row]);
    return begun;
  }

  return {
    async capture(versionId, sandboxId, signal) {
      const begun = await begin(versionId, sandboxId);
      if ('refused' in begun) return `no template was made: ${begun.refused}`;
      using watch = changes.watch(begun.id);
      for (;;) {
        const state = await rows.templateState(database.pool, begun.id);
        if (state?.status === 'ready') return null;
        if (state?.status !== 'pending') return `no template was made: ${state?.error ?? 'it was deleted'}`;
        await watch.next(RECHECK_MS, signal);
        signal.throwIfAborted();
      }
    },

    async source(client, versionId, spec) {
      const ready = await rows.readyTemplates(client, versionId);
      const usable = ready.filter((one) => platformMismatch(one, one.facts) === undefined);
      if (usable.length === 0) return undefined;
      const idsOf = (some: typeof usable): string[] => [...new Set(some.map((one) => one.runner_id))];
      const need = {
        region: spec.region,
        arch: spec.cpu_arch,
        cpu: spec.cpu,
        mem_mib: spec.mem_mib,
        // The saved memory is on the disk until the instance runs.
        disk_mib: spec.scratch_mib + spec.mem_mib,
        gpus: 0,
        requiredRunnerId: null,
        holders: idsOf(usable.filter(({ is_holder: isHolder }) => isHolder)),
        overcommitted: isOvercommitted(spec, limits.overcommit),
      };
      const hosts = await readSomeHosts(client, limits.overcommit, idsOf(usable));
      const choice = choose(need, hosts, limits.overcommit);
      if ('reason' in choice) return undefined;
      const runnerId = choice.host.id;
      for (const { id } of usable.filter((one) => one.runner_id === runnerId)) {
        const snapshot = await keepSnapshot(client, id);
        if (snapshot?.status === 'ready') return { source: { kind: 'snapshot', snapshot }, runnerId };
      }
      return undefined;
    },

    async discard(snapshotId, runnerId) {
      log.warn(
        { snapshot: snapshotId, runner: runnerId },
        'a template of a function could not be restored; its host does not use it any more',
      );
      if (!(await rows.refuseTemplate(database.pool, snapshotId, runnerId)))
        await rows.forgetTemplates(database.pool, [snapshotId]);
    },

    async sweep() {
      const outdated = await rows.outdatedTemplates(database.pool);
      const machines = outdated.length === 0 ? [] : await rows.connectedMachines(database.pool);
      const unusable = outdated.filter(
        (one) =>
          platformMismatch(one, one.facts) !== undefined &&
          !(one.stored && machines.some((facts) => platformMismatch(one, facts) === undefined)),
      );
      await rows.forgetTemplates(
        database.pool,
        unusable.map((one) => one.snapshot_id),
      );
      const unused = await rows.unusedSnapshots(database.pool);
      if (unused.length > 0) await snapshots.apply('delete', unused);
    },
  };
}
