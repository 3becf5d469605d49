import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { FunctionTemplates } from './templates.ts';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { FunctionInstances } from '../instances/instances.ts';
import type { Logger } from 'pino';
import type { Module } from '../../platform/module.ts';
import { createProber } from './prober.ts';

export interface FunctionTemplatesModuleOptions {
  changes: ChangeNotifier;
  cleanup: AsyncDisposableStack;
  database: Database;
  events: EventBus;
  functionTemplates: FunctionTemplates;
  hosts: HostClient;
  instances: FunctionInstances;
  limits: { functionListenMs: number; sweepMs: number };
  log: Logger;
  serverId: string;
}

/** Tries versions of functions before they serve. */
export function functionTemplatesModule(context: FunctionTemplatesModuleOptions): Module {
  const prober = context.cleanup.use(createProber(context));
  return {
    name: 'function-templates',
    tasks: [
      {
        name: 'function-versions',
        // What a deploy on this server has made pending is tried here, at once.
        everyMs: context.limits.sweepMs,
        leased: true,
        run: () => prober.sweep(),
      },
      {
        name: 'function-templates',
        // It reads all templates; what serves is decided when an instance starts.
        everyMs: 300 * context.limits.sweepMs,
        leased: true,
        run: () => context.functionTemplates.sweep(),
      },
    ],
  };
}
