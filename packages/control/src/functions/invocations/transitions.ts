/**
 * The transition table of invocations. Asynchronous ones are leased (lease.ts); synchronous ones have a row before their end only if
 * they run for long (running.ts). Each status is written with charges, payloads and leases of many rows, in one statement.
 */
import type { InvocationStatus } from '@releap/contract';
import { defineMachine, type Transition } from '../../platform/lifecycle/machine.ts';
import { eventSql } from '../../platform/lifecycle/sql.ts';

export const OUTCOMES = ['succeeded', 'failed', 'timeout', 'shed'] as const;
export type InvocationOutcome = (typeof OUTCOMES)[number];
type InvocationEvent =
  | 'lease'
  | 'return'
  | 'report'
  | 'abandon'
  | 'function-deleted'
  | `end:${InvocationOutcome}`;

// biome-ignore format: one row per line
export const INVOCATION_MACHINE = defineMachine<Transition<InvocationStatus, InvocationEvent>>({
  name: 'invocation',
  table: 'invocations',
  transitions: [
    { from: ['pending'], on: 'lease', to: 'running', note: 'a server has the attempt' },
    { from: ['running'], on: 'return', to: 'pending', note: 'the server has died or is stopping' },
    { from: ['running', 'failed'], on: 'report', to: 'running', note: 'its gateway says that it runs, also after it was abandoned' },
    { from: ['running'], on: 'abandon', to: 'failed', note: 'synchronous: its gateway reports nothing any more' },
    { from: ['pending'], on: 'function-deleted', to: 'failed' },
    ...OUTCOMES.map((outcome) => ({ from: ['running', 'failed'] as const, on: `end:${outcome}` as const, to: outcome, note: 'also after it was abandoned' })),
  ],
});
export const INVOCATION_EVENTS = eventSql(INVOCATION_MACHINE);
