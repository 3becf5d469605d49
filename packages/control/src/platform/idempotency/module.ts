import type { ControlContext } from '../../context.ts';
import type { Module } from '../module.ts';

const EXPIRE_MS = 30_000;

export function idempotencyModule({ idempotency }: ControlContext): Module {
  return {
    name: 'idempotency',
    tasks: [{ name: 'idempotency-expiry', everyMs: EXPIRE_MS, leased: true, run: () => idempotency.sweep() }],
  };
}
