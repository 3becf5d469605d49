import type { Idempotency } from './idempotency.ts';
import type { Module } from '../module.ts';

const EXPIRE_MS = 30_000;

export function idempotencyModule({ idempotency }: { idempotency: Idempotency }): Module {
  return {
    name: 'idempotency',
    tasks: [{ name: 'idempotency-expiry', everyMs: EXPIRE_MS, leased: true, run: () => idempotency.sweep() }],
  };
}
