/** The transition table of jobs. A job ends with what it makes, in the same statement. */
import type { JobStatus } from '@releap/contract';
import { defineMachine, type Transition } from './machine.ts';
import { eventSql } from './sql.ts';

// biome-ignore format: one row per line
export const JOB_MACHINE = defineMachine<Transition<JobStatus, 'begin' | 'finish' | 'fail'>>({
  name: 'job',
  table: 'jobs',
  transitions: [
    { from: ['queued', 'running'], on: 'begin', to: 'running', note: 'a host has it; another, when a build is lost with its host' },
    { from: ['queued', 'running'], on: 'finish', to: 'done' },
    { from: ['queued', 'running'], on: 'fail', to: 'failed', note: 'also when what it makes is deleted or replaced' },
  ],
});
export const JOB_EVENTS = eventSql(JOB_MACHINE);
