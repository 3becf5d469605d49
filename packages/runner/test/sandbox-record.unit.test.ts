import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { pino } from 'pino';
import { RecordStore, type SandboxRecord } from '../src/reconcile/sandbox-record.ts';
import { SandboxState } from '../src/reconcile/sandbox-state.ts';
import { bootId } from '../src/vmm/process-identity.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { filesWith } from '@releap/testing/find-text';
import { temporaryFolder } from '@releap/testing/oci';

test('the record of a sandbox holds all of its assignment but the credentials for registries', async () => {
  await using folder = await temporaryFolder();
  const records = new RecordStore(join(folder.path, 'state'));
  await records.load(pino({ level: 'silent' }));
  const vm_id = crypto.randomUUID();
  const record: SandboxRecord = {
    bootId: bootId(),
    assignment: {
      vm_id,
      generation: 3,
      desired: 'running',
      spec: {
        name: 'x',
        root: { type: 'registry', ref: 'localhost:5000/app', digest: `sha256:${'ab'.repeat(32)}` },
        mode: 'burstable',
        cpu: 1,
        vcpus: 1,
        mem_mib: 128,
        scratch_mib: 64,
        ports: [],
        env: { A: 'b' },
        persistent: false,
        spot: false,
      },
    },
    observation: { vm_id, generation: 3, status: 'building' },
  };
  const { spec } = record.assignment;
  const root = {
    ...spec.root,
    credential: { username: 'user', password: 'never-on-disk' },
  } as typeof spec.root;
  await records.save({ ...record, assignment: { ...record.assignment, spec: { ...spec, root } } });
  assert.deepEqual(await records.load(pino({ level: 'silent' })), { records: [record], unreadable: [] });
  const dockerfile = {
    type: 'dockerfile' as const,
    project_id: crypto.randomUUID(),
    dockerfile: { text: 'FROM busybox' },
    docker: false,
    credentials: [
      { host: 'localhost:5000', kind: 'basic' as const, username: 'user', password: 'never-on-disk' },
    ],
  };
  await records.save({
    ...record,
    assignment: { ...record.assignment, spec: { ...spec, root: dockerfile } },
  });
  const [saved] = (await records.load(pino({ level: 'silent' }))).records;
  assert.deepEqual(saved?.assignment.spec.root, { ...dockerfile, credentials: [] });
  assert.deepEqual(filesWith(folder.path, 'never-on-disk'), []);
});

test('after a restart of the host the ports of a record are not used again: it may be an older one', () => {
  const vm_id = crypto.randomUUID();
  const assignment = { vm_id, generation: 1, desired: 'running' as const, spec: SPEC };
  const ports = [{ vm_port: 80, proto: 'tcp' as const, host_port: 40_000 }];
  const observation = { vm_id, generation: 1, status: 'running' as const };
  const past = (writtenIn: string): SandboxState['past'] => {
    const deps = { records: {} as RecordStore, report: () => undefined, log: pino({ enabled: false }) };
    return new SandboxState(deps, assignment, { assignment, observation, ports, bootId: writtenIn }).past;
  };
  assert.deepEqual(past(bootId()).ports, ports);
  // Not undefined: it has run.
  assert.deepEqual(past('another').ports, []);
});

test('the record of what lasts is fsynced', async () => {
  const vm_id = crypto.randomUUID();
  const assignment = { vm_id, generation: 1, desired: 'running' as const, spec: SPEC };
  const done: string[] = [];
  let status = '';
  const records = {
    save: async (record: SandboxRecord) => void (status = record.observation.status),
    makeDurable: async () => void done.push(status),
  } as unknown as RecordStore;
  const deps = { records, report: () => undefined, log: pino({ enabled: false }) };
  const state = new SandboxState(deps, assignment);
  for (const next of ['booting', 'running', 'pausing', 'paused', 'stopping', 'stopped'] as const)
    await state.observe(next);
  assert.deepEqual(done, ['running', 'paused', 'stopped']);
});
