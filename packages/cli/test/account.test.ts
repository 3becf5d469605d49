import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { home } from './home.ts';
import { testUser } from './issuer.ts';
import { person, signedIn, signedInWorld } from './person.ts';
import type { Outcome } from './rlp.ts';
import { type AuditEntry, newUuid } from '@releap/contract';
import { send } from './service.ts';
import { OPERATOR_TOKEN } from './service-hosts.ts';
import { addOrganization, addProject } from './service-management.ts';

const list = (outcome: Outcome): Record<string, unknown>[] =>
  JSON.parse(outcome.stdout) as Record<string, unknown>[];

/** The cells of a table, without its head. */
function rows({ stdout }: Outcome): string[][] {
  const [, ...lines] = stdout.trimEnd().split('\n');
  return lines.map((line) => line.split(/\s{2,}/));
}

describe('rlp org', () => {
  test('makes, lists, renames and deletes organizations, by name or id', async () => {
    await using it = await signedInWorld();
    const made = await it.ada.rlp(['org', 'create', 'Büro 東京']);
    const [own, office] = it.management.organizations;
    assert.deepEqual(made, { code: 0, stdout: `${office?.id}\n`, stderr: '' });
    assert.deepEqual(rows(await it.ada.rlp(['org', 'ls'])), [
      ['ada', 'owner', own?.id, 'personal'],
      ['Büro 東京', 'owner', office?.id],
    ]);
    assert.equal((await it.ada.rlp(['org', 'rename', 'Büro 東京', 'Office'])).code, 0);
    assert.equal((await it.ada.rlp(['org', 'rm', 'Office'])).stdout, `${office?.id}\n`);
    assert.equal(it.management.organizations.length, 1);
  });

  test('what is unknown, personal or not its owner’s is told, and the rest goes on', async () => {
    await using it = await signedInWorld();
    const shared = addOrganization(it.management, testUser('bob'), 'shared');
    const gone = addOrganization(it.management, it.issuer.user, 'gone');
    shared.members.push({ ...it.issuer.user, role: 'member' });
    const outcome = await it.ada.rlp(['org', 'rm', 'nobody', 'ada', shared.id, 'gone', '--json']);
    assert.equal(outcome.code, 4);
    assert.deepEqual(list(outcome), [
      { org: 'nobody', error: 'no organization has the name or id "nobody": rlp org ls lists them' },
      { org: 'ada', error: 'a personal organization cannot be deleted' },
      { org: shared.id, error: 'this is for owners' },
      { org: 'gone', id: gone.id, status: 'deleted' },
    ]);
  });

  test('a name that means two wants an id', async () => {
    await using it = await signedInWorld();
    const [a, b] = [1, 2].map(() => addOrganization(it.management, it.issuer.user, 'twins'));
    const outcome = await it.ada.rlp(['org', 'members', 'twins']);
    assert.equal(outcome.code, 2);
    assert.match(
      outcome.stderr,
      new RegExp(`2 organizations have the name "twins", use an id: ${a?.id}, ${b?.id}`),
    );
    assert.equal((await it.ada.rlp(['org', 'members', String(a?.id).toUpperCase()])).code, 0);
  });

  test('members: listed, and removed by address or id', async () => {
    await using it = await signedInWorld();
    const [bob, eve] = [testUser('bob'), testUser('eve\u001b[2J')];
    const shared = addOrganization(it.management, it.issuer.user, 'shared');
    shared.members.push({ ...bob, role: 'member' }, { ...eve, role: 'member' });
    const all = await it.ada.rlp(['org', 'members', 'shared']);
    assert.deepEqual(rows(all)[1], ['bob@example.com', 'bob', 'member', bob.id]);
    assert.ok(!all.stdout.includes('\u001b'));
    const removed = await it.ada.rlp([
      'org',
      'remove-member',
      '--org',
      'shared',
      'BOB@example.com',
      eve.id,
      'nobody',
    ]);
    assert.deepEqual([removed.code, removed.stdout], [4, `${bob.id}\n${eve.id}\n`]);
    const last = await it.ada.rlp(['org', 'remove-member', '--org', 'shared', 'ada@example.com']);
    assert.deepEqual([last.code, last.stderr], [1, 'rlp: the last owner cannot be removed\n']);
  });

  test('audit: newest first, as much as is asked for', async () => {
    await using it = await signedInWorld();
    const entry = (action: string): AuditEntry => ({
      id: newUuid(),
      created_at: new Date().toISOString(),
      actor: { kind: 'user', id: 'x', name: 'ada@example.com' },
      action,
      target: { kind: 'member', id: 'y' },
      ip: '10.0.0.1',
      outcome: 'refused',
      project_id: null,
      details: {},
      user_agent: null,
    });
    it.management.organizations[0]?.audit.push(...['a', 'b', 'c', 'd', 'e'].map(entry));
    assert.deepEqual(
      rows(await it.ada.rlp(['org', 'audit', '--limit', '3'])).map((row) => row.slice(1)),
      ['a', 'b', 'c'].map((action) => ['ada@example.com', action, 'member y', '10.0.0.1', 'refused']),
    );
    assert.equal(list(await it.ada.rlp(['org', 'audit', '--json'])).length, 5);
    assert.equal((await it.ada.rlp(['org', 'audit', '--limit', '0'])).code, 2);
  });
});

describe('rlp project', () => {
  test('makes, lists and deletes projects in an organization', async () => {
    await using it = await signedInWorld();
    const office = addOrganization(it.management, it.issuer.user, 'office');
    const made = await it.ada.rlp(['project', 'create', 'web', '--org', 'office']);
    assert.deepEqual(made, { code: 0, stdout: `${office.projects[0]?.id}\n`, stderr: '' });
    assert.equal((await it.ada.rlp(['project', 'create', 'mine'])).code, 0);
    assert.deepEqual(
      rows(await it.ada.rlp(['project', 'ls'])).map((row) => row.slice(0, 2)),
      [
        ['mine', 'ada'],
        ['web', 'office'],
      ],
    );
    assert.equal(rows(await it.ada.rlp(['project', 'ls', '--org', 'office'])).length, 1);
    const twice = await it.ada.rlp(['project', 'create', 'web', '--org', 'office']);
    assert.deepEqual([twice.code, twice.stderr], [1, 'rlp: there is a project "web" already\n']);
    assert.equal((await it.ada.rlp(['project', 'rm', 'web', 'nobody'])).code, 4);
    assert.deepEqual(office.projects, []);
  });

  test('use: a key of its own for this machine, which commands on sandboxes then take', async () => {
    await using it = await signedInWorld();
    const { ada, management, service } = it;
    const web = addProject(management.organizations[0] as never, 'web');
    service.add('one');
    const used = await ada.rlp(['project', 'use', 'web']);
    assert.deepEqual(used, { code: 0, stdout: `${web.id}\n`, stderr: '' });
    assert.match(management.keys[0]?.name ?? '', /^rlp on /);
    assert.match((await ada.rlp(['ps'])).stdout, /one/);
    assert.match((await ada.rlp(['whoami'])).stdout, new RegExp(`\nproject web \\(${web.id}\\)\n`));
    assert.equal(rows(await ada.rlp(['project', 'ls']))[0]?.[3], 'in use');
    assert.equal((await ada.rlp(['ps', '--api-key', 'rlp_wrong'])).code, 3, 'a key that is given wins');
    assert.equal((await ada.rlp(['ps'], { env: { RELEAP_API_KEY: 'rlp_wrong' } })).code, 3);
    assert.equal(
      (await ada.rlp(['ps', '--url', 'http://127.0.0.1:2'])).code,
      3,
      'it is told to no other service',
    );
  });

  test('use again: the key stays while it works, and another project has one of its own', async () => {
    await using it = await signedInWorld();
    const { ada, management } = it;
    for (const name of ['web', 'db']) addProject(management.organizations[0] as never, name);
    for (const name of ['web', 'db', 'web']) assert.equal((await ada.rlp(['project', 'use', name])).code, 0);
    assert.equal(management.keys.length, 2);
    for (const key of management.keys) key.revoked_at = new Date().toISOString();
    assert.equal((await ada.rlp(['ps'])).code, 3);
    assert.equal((await ada.rlp(['project', 'use', 'web'])).code, 0);
    assert.equal(management.keys.length, 3);
    assert.equal((await ada.rlp(['ps'])).code, 0);
    assert.equal(await ada.fileMode(), 0o600);
  });

  test('wins over the server of this machine, until none is in use', async () => {
    await using it = await signedInWorld();
    await using folder = await home(null, {
      'bootstrap.json': JSON.stringify({ base_url: 'http://127.0.0.1:2', api_key: 'rlp_local' }),
    });
    const env = { RELEAP_HOME: folder.path };
    addProject(it.management.organizations[0] as never, 'web');
    assert.match((await it.ada.rlp(['ps'], { env })).stderr, /cannot reach/, 'signed in, but none in use');
    assert.equal((await it.ada.rlp(['project', 'use', 'web'], { env })).code, 0);
    assert.equal((await it.ada.rlp(['ps'], { env })).code, 0);
    assert.equal((await it.ada.rlp(['project', 'use', '--none'], { env })).code, 0);
    assert.match((await it.ada.rlp(['ps'], { env })).stderr, /cannot reach/);
    for (const args of [[], ['web', '--none']])
      assert.equal((await it.ada.rlp(['project', 'use', ...args], { env })).code, 2);
  });

  test('rm of the one in use: it is not used any more', async () => {
    await using it = await signedInWorld();
    addProject(it.management.organizations[0] as never, 'web');
    assert.equal((await it.ada.rlp(['project', 'use', 'web'])).code, 0);
    assert.equal((await it.ada.rlp(['project', 'rm', 'web'])).code, 0);
    const session = (await it.ada.credentials()).services[it.service.url];
    assert.deepEqual([session?.project, session?.keys], [undefined, {}]);
  });

  test('use when the service is out of order changes nothing', async () => {
    await using it = await signedInWorld();
    const web = addProject(it.management.organizations[0] as never, 'web');
    it.service.special.set(`POST /projects/${web.id}/api-keys`, (_request, response) =>
      send(response, 409, { error: 'the project has as many keys as it may' }),
    );
    const before = await it.ada.credentials();
    const outcome = await it.ada.rlp(['project', 'use', 'web']);
    assert.deepEqual([outcome.code, outcome.stderr], [1, 'rlp: the project has as many keys as it may\n']);
    assert.deepEqual(await it.ada.credentials(), before);
  });
});

describe('rlp key', () => {
  test('makes one and shows it once, lists and revokes them', async () => {
    await using it = await signedInWorld();
    addProject(it.management.organizations[0] as never, 'web');
    const made = await it.ada.rlp(['key', 'create', 'ci']);
    const [key] = it.management.keys;
    assert.deepEqual(made, { code: 0, stdout: `${key?.token}\n`, stderr: '' });
    assert.equal((await it.ada.rlp(['key', 'create'])).code, 0, 'the service names it');
    const all = await it.ada.rlp(['key', 'ls']);
    assert.deepEqual(
      rows(all).map((row) => row[0]),
      ['default', 'ci'],
    );
    assert.ok(!all.stdout.includes(String(key?.token)));
    const revoked = await it.ada.rlp(['key', 'rm', String(key?.id), 'nobody']);
    assert.deepEqual([revoked.code, revoked.stdout], [4, `${key?.id}\n`]);
    assert.equal(rows(await it.ada.rlp(['key', 'ls'])).length, 1);
    assert.equal(rows(await it.ada.rlp(['key', 'ls', '--revoked']))[1]?.[5], 'revoked');
  });

  test('which project: the one in use, the only one, or it has to be said', async () => {
    await using it = await signedInWorld();
    const [own] = it.management.organizations;
    assert.match((await it.ada.rlp(['key', 'ls'])).stderr, /there is no project yet/);
    addProject(own as never, 'web');
    const db = addProject(own as never, 'db');
    const open = await it.ada.rlp(['key', 'create']);
    assert.equal(open.code, 2);
    assert.match(open.stderr, /say which project, with --project or rlp project use/);
    assert.equal((await it.ada.rlp(['key', 'create', '--project', 'db'])).code, 0);
    assert.equal((await it.ada.rlp(['project', 'use', 'web'])).code, 0);
    assert.equal((await it.ada.rlp(['key', 'create', 'ci'])).code, 0);
    assert.deepEqual(
      it.management.keys.map(({ project_id }) => project_id === db.id),
      [false, false, true],
    );
    assert.equal((await it.ada.rlp(['key', 'ls', '--project', 'nobody'])).code, 4);
  });
});

describe('rlp invite', () => {
  test('from the invitation to the membership', async () => {
    await using it = await signedInWorld();
    await using bob = await person();
    const office = addOrganization(it.management, it.issuer.user, 'office');
    await bob.remember(signedIn(it, testUser('bob')));
    const invited = await it.ada.rlp(['invite', 'create', 'bob@example.com', '--org', 'office']);
    assert.deepEqual(invited, { code: 0, stdout: `${office.invitations[0]?.id}\n`, stderr: '' });
    assert.deepEqual(rows(await it.ada.rlp(['invite', 'ls', '--org', 'office'])), [
      ['bob@example.com', 'member', String(office.invitations[0]?.id)],
    ]);
    const [mine] = rows(await bob.rlp(['invite', 'ls']));
    assert.deepEqual(mine?.slice(0, 2), ['office', 'member']);
    assert.deepEqual(await bob.rlp(['invite', 'accept', String(mine?.[2])]), {
      code: 0,
      stdout: `${office.id}\n`,
      stderr: '',
    });
    assert.equal((await bob.rlp(['invite', 'accept', String(mine?.[2])])).code, 4);
    assert.equal((await bob.rlp(['project', 'create', 'his', '--org', 'office'])).code, 0);
    assert.equal((await bob.rlp(['invite', 'create', 'eve@example.com', '--org', 'office'])).code, 1);
  });

  test('a role that is none, a personal organization, and one taken back', async () => {
    await using it = await signedInWorld();
    assert.equal((await it.ada.rlp(['invite', 'create', 'bob@example.com', '--role', 'king'])).code, 2);
    const personal = await it.ada.rlp(['invite', 'create', 'bob@example.com']);
    assert.deepEqual(
      [personal.code, personal.stderr],
      [1, 'rlp: a personal organization accepts no members\n'],
    );
    const office = addOrganization(it.management, it.issuer.user, 'office');
    const args = ['--org', 'office', '--role', 'owner', '--json'];
    const made = JSON.parse((await it.ada.rlp(['invite', 'create', 'bob@example.com', ...args])).stdout) as {
      id: string;
      role: string;
    };
    assert.equal(made.role, 'owner');
    assert.equal((await it.ada.rlp(['invite', 'rm', made.id, '--org', 'office'])).code, 0);
    assert.deepEqual(office.invitations, []);
  });
});

describe('rlp credits', () => {
  test('the balance, and what has changed it', async () => {
    await using it = await signedInWorld();
    const entry = { id: 2, amount: '-0.000000001', kind: 'usage' as const, vm_id: 'local-x', note: null };
    it.management.organizations[0]?.ledger.push(
      { ...entry, created_at: new Date().toISOString() },
      {
        ...entry,
        id: 1,
        amount: '20',
        kind: 'grant',
        vm_id: null,
        note: 'hi',
        created_at: '2020-01-01T00:00:00Z',
      },
    );
    const { code, stdout } = await it.ada.rlp(['credits']);
    assert.equal(code, 0);
    assert.match(
      stdout,
      /^balance 12\.5\nsandboxes are deleted at -5\n\nAGE .*\n\d+ s +-0\.000000001 +usage +local-x\n/,
    );
    assert.match(stdout, /d +20 +grant +- +hi\n$/);
    const one = JSON.parse((await it.ada.rlp(['credits', 'ada', '--limit', '1', '--json'])).stdout) as {
      ledger: unknown[];
    };
    assert.equal(one.ledger.length, 1);
    assert.equal((await it.ada.rlp(['credits', 'nobody'])).code, 4);
  });
});

describe('rlp admin grant', () => {
  const ORG = '11111111-1111-4111-8111-111111111111';

  test('gives credits with the token of the service, and prints the balance', async () => {
    await using it = await signedInWorld();
    await using folder = await home(it.service);
    const bodies: unknown[] = [];
    const keys: unknown[] = [];
    it.service.special.set(`POST /operator/orgs/${ORG}/grants`, async (request, response) => {
      assert.equal(request.headers.authorization, `Bearer ${OPERATOR_TOKEN}`);
      let text = '';
      for await (const chunk of request as AsyncIterable<Buffer>) text += chunk.toString('utf8');
      bodies.push(JSON.parse(text));
      keys.push(request.headers['idempotency-key']);
      const entry = {
        id: 1,
        amount: '100',
        kind: 'grant',
        vm_id: null,
        note: null,
        created_at: '2026-01-02T03:04:05Z',
      };
      return send(response, 200, { org_id: ORG, entry, balance: '112.5' });
    });
    const env = { RELEAP_HOME: folder.path };
    const given = await it.ada.rlp(['admin', 'grant', ORG, '100', '--note', 'welcome'], { env });
    assert.deepEqual(given, { code: 0, stdout: '112.5\n', stderr: '' });
    assert.equal(
      (await it.ada.rlp(['admin', 'grant', '--adjustment', '--once', 'invoice-17', '--', ORG, '-5'], { env }))
        .code,
      0,
    );
    assert.deepEqual(bodies, [
      { amount: '100', note: 'welcome' },
      { amount: '-5', kind: 'adjustment' },
    ]);
    assert.deepEqual(keys, [undefined, 'invoice-17']);
  });

  test('what is no id or no amount, and no token to be read', async () => {
    await using it = await signedInWorld();
    await using folder = await home(it.service);
    const env = { RELEAP_HOME: folder.path };
    for (const args of [
      [ORG, 'much'],
      [ORG, '1e9'],
      [ORG, '0.0000000001'],
      [ORG, '5', '--once', 'two words'],
      ['ada', '5'],
      [ORG],
    ])
      assert.equal((await it.ada.rlp(['admin', 'grant', ...args], { env })).code, 2, args.join(' '));
    const nobody = await it.ada.rlp(['admin', 'grant', ORG, '5']);
    assert.equal(nobody.code, 3);
    assert.match(nobody.stderr, /operator\.token\. This is for the service's operator/);
    assert.deepEqual(it.service.calls, []);
  });
});
