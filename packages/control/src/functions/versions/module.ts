import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { deleteSuperseded, followBuilds } from './builds.ts';
import { removeDeleted } from './delete.ts';
import { functionTeardown } from './teardown.ts';
import { functionRoutes } from './routes.ts';
import { createVersionStates } from './version-states.ts';

/** How often all functions are searched for images of replaced versions that a change has missed. */
const SUPERSEDED_MS = 3_600_000;
/** How often deleted functions are looked at. */
const DELETED_MS = 30_000;

export function functionsModule(context: ControlContext): Module {
  const { database, events, limits, log } = context;
  const states = createVersionStates(database, events);
  events.on('functions-changed', (ids) => {
    deleteSuperseded(context, ids).catch((error: unknown) =>
      log.warn({ err: error }, 'images of replaced versions were not deleted; trying later'),
    );
  });
  return {
    name: 'functions',
    routes: (planes) => functionRoutes(planes, context),
    tasks: [
      {
        name: 'function-builds',
        everyMs: limits.sweepMs,
        leased: true,
        run: () => followBuilds(context, states),
      },
      {
        name: 'function-images',
        everyMs: SUPERSEDED_MS,
        leased: true,
        run: () => deleteSuperseded(context),
      },
      {
        name: 'function-deletions',
        everyMs: DELETED_MS,
        leased: true,
        run: () => removeDeleted(context),
      },
    ],
    teardown: functionTeardown(context),
  };
}
