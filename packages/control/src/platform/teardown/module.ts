import type { Database } from '@releap/database';
import type { EventBus } from '../events/event-bus.ts';
import type { Logger } from 'pino';
import { internalOperations } from '@releap/contract';
import { queryAll, statement } from '@releap/database';
import type { Module } from '../module.ts';
import type { TeardownStep } from './step.ts';
import { createTeardown } from './teardown.ts';

const DELETED = statement<{ id: string }>(
  'projects-deleted-of',
  'select id from projects where id = any($1::uuid[]) and deleted_at is not null',
);

export interface TeardownModuleOptions {
  cleanup: AsyncDisposableStack;
  database: Database;
  events: EventBus;
  limits: { sweepMs: number; teardownGraceMs: number };
  log: Logger;
}

/** @param steps of all modules */
export function teardownModule(context: TeardownModuleOptions, steps: readonly TeardownStep[]): Module {
  const { database, limits, log, events, cleanup } = context;
  const teardown = createTeardown({ database, steps, graceMs: limits.teardownGraceMs, log });
  cleanup.defer(() => teardown.close());
  events.on('projects-deleted', () => teardown.kick());
  return {
    name: 'teardown',
    // What only a host has of a project, such as its layer cache of builds, the host removes.
    routes: ({ runner }) => {
      runner.operation(internalOperations.listDeletedProjects, async ({ body: { projects } }) => {
        const rows = await queryAll(database.pool, DELETED, [projects]);
        return { deleted: rows.map(({ id }) => id) };
      });
    },
    tasks: [
      {
        name: 'teardown',
        everyMs: limits.sweepMs,
        leased: true,
        timeoutMs: 600_000,
        run: () => teardown.sweep(),
      },
    ],
  };
}
