import assert from 'node:assert/strict';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { Browser } from 'playwright-core';
import { signIn, startChromium } from './support/chromium.ts';
import { eventually } from '@releap/testing/eventually';
import { Service } from '@releap/testing/service';
import { terminal } from './support/terminal.ts';

const PATIENCE_MS = 120_000;
const SIZE = ['--cpu', '1', '--mem', '256', '--scratch', '64'];

/** The first steps of a new user. */
describe('a new user, in a browser and a terminal', () => {
  let service: Service;
  let folder: string;
  let chromium: Browser;
  before(async () => {
    folder = await temporaryFolder('releap-user-');
    for (const name of ['ada', 'grace']) await mkdir(join(folder, name));
    chromium = await startChromium();
    // Prices at which the adjusted balance lasts for seconds, and the granted one for the rest of the test.
    service = await Service.start({
      RELEAP_BILLING: 'enforce',
      RELEAP_METER_SECONDS: '1',
      RELEAP_PRICE_CPU_SECOND: '1',
      RELEAP_OVERDRAFT_LIMIT: '2',
    });
  });
  after(async () => {
    await chromium?.close();
    await service?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  const ada = terminal(() => ({ service, folder: join(folder, 'ada') }));
  const grace = terminal(() => ({ service, folder: join(folder, 'grace') }));
  let org = '';

  test('signs in at the address that the command line prints, and by a code that it prints', async () => {
    const login = ada.start(['login']);
    login.child.stdin?.end();
    const address = await eventually('an address', () => /^ {2}(http\S+)$/m.exec(login.outcome.stderr)?.[1]);
    await signIn(chromium, address, 'ada@example.com');
    assert.equal((await login.ended).code, 0, login.outcome.stderr);
    assert.match(await ada.output(['whoami']), /^ada@example\.com/);

    const device = grace.start(['login', '--device']);
    device.child.stdin?.end();
    const place = await eventually(
      'a code',
      () => /open (http\S+user_code=\S+)/.exec(device.outcome.stderr)?.[1],
    );
    await signIn(chromium, place, 'grace@example.com');
    assert.equal((await device.ended).code, 0, device.outcome.stderr);
  });

  test('makes an organization and a project in it, and invites another user', async () => {
    org = (await ada.output(['org', 'create', 'Office'])).trim();
    await ada.output(['project', 'create', 'web', '--org', 'Office']);
    await ada.output(['project', 'use', 'web']);
    assert.doesNotMatch(await grace.output(['org']), /Office/);
    await ada.output(['invite', 'create', 'grace@example.com', '--org', 'Office']);
    const invitation = (await grace.output(['invite'])).match(/[0-9a-f-]{36}/)?.[0] ?? '';
    await grace.output(['invite', 'accept', invitation]);
    assert.match(await grace.output(['org']), /Office/);
    assert.match(await ada.output(['org', 'members', 'Office']), /grace@example\.com/);
    const refused = await grace.rlp(['org', 'rename', 'Office', 'Mine']);
    assert.notEqual(refused.code, 0);
    assert.match(refused.stderr, /owner/);
  });

  const create = async (key: string): Promise<{ status: number; body: Record<string, unknown> }> =>
    await service.call('POST', '/vms', { image: 'busybox', cpu: 1, mem_mib: 256, scratch_mib: 64 }, key);

  test('is refused without credits, continues when granted some, and is stopped when they have run out', async () => {
    const key = (await grace.output(['key', 'create', 'script', '--project', 'web'])).trim();
    assert.match(key, /^rlp_/);
    const poor = await create(key);
    assert.equal(poor.status, 402, JSON.stringify(poor.body));
    assert.notEqual((await ada.rlp(['run', ...SIZE, '--name', 'mine', 'busybox'])).code, 0);

    await ada.output(['admin', 'grant', org, '3000', '--note', 'welcome']);
    assert.match(await ada.output(['credits', 'Office']), /welcome/);
    await ada.output(['run', ...SIZE, '--name', 'mine', 'busybox']);
    assert.equal(await ada.output(['exec', 'mine', '--', 'echo', 'hello']), 'hello\n');

    await ada.output(['admin', 'grant', '--adjustment', '--', org, '-2999']);
    await eventually(
      'the end of unpaid sandboxes',
      async () => ((await ada.output(['ps', '-q'])) === '' ? true : undefined),
      PATIENCE_MS,
    );
    assert.match(await ada.output(['credits', 'Office']), /-\d/);
    assert.equal((await create(key)).status, 402);

    await ada.output(['admin', 'grant', org, '3000']);
    const rich = await create(key);
    assert.equal(rich.status, 200, JSON.stringify(rich.body));
    await ada.output(['rm', '--wait', String(rich.body['vm_id'])]);
  });
});
