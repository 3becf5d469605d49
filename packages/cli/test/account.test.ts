import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { newUuid, parseAmount } from '@releap/contract';
import { home } from './home.ts';
import { type Accounts, type SignedIn, startAccounts } from './person.ts';
import { sendJson, startRelay } from './relay.ts';
import { type Outcome, rlpHere } from './rlp.ts';

let accounts: Accounts;
before(async () => {
  accounts = await startAccounts({
    billing: { mode: 'enforce', overdraftLimit: parseAmount('5') ?? 0n },
  });
  await accounts.world.runner();
});
after(() => accounts[Symbol.asyncDispose]());

const list = (outcome: Outcome): Record<string, unknown>[] =>
  JSON.parse(outcome.stdout) as Record<string, unknown>[];

/** The cells of a table, without its head. */
function rows({ stdout }: Outcome): string[][] {
  const [, ...lines] = stdout.trimEnd().split('\n');
  return lines.map((line) => line.split(/\s{2,}/));
}

interface Organization {
  id: string;
  name: string;
  personal: boolean;
}
async function organizations(who: SignedIn): Promise<Organization[]> {
  return (await who.call('GET', '/orgs')).body.organizations as Organization[];
}
const personal = async (who: SignedIn): Promise<Organization> => {
  const own = (await organizations(who)).find((one) => one.personal);
  assert.ok(own !== undefined);
  return own;
};

/** Makes what is asked for, and gives its id. */
async function make(who: SignedIn, path: string, body: object): Promise<string> {
  const { status, body: made } = await who.call('POST', path, body);
  assert.equal(status, 200, JSON.stringify(made));
  return String(made.id);
}
const makeOrg = (who: SignedIn, name: string): Promise<string> => make(who, '/orgs', { name });
const makeProject = async (who: SignedIn, name: string, org?: string): Promise<string> =>
  make(who, `/orgs/${org ?? (await personal(who)).id}/projects`, { name });

async function addMember(org: string, owner: SignedIn, member: SignedIn): Promise<void> {
  const invitation = await make(owner, `/orgs/${org}/invitations`, { email: member.user.email });
  assert.equal((await member.call('POST', `/invitations/${invitation}/accept`)).status, 200);
}

interface Key {
  id: string;
  name: string;
  project_id: string;
  revoked_at: string | null;
}
async function keysOf(who: SignedIn, project: string): Promise<Key[]> {
  return (await who.call('GET', `/projects/${project}/api-keys?include_revoked=true`)).body.api_keys as Key[];
}

/** So that its projects may run something. */
async function grant(org: string): Promise<void> {
  const answer = await accounts.world.operator('POST', `/operator/orgs/${org}/grants`, { amount: '1000' });
  assert.equal(answer.status, 200, answer.text);
}

describe('rlp org', () => {
  test('makes, lists, renames and deletes organizations, by name or id', async () => {
    await using ada = await accounts.signedIn('ada');
    const made = await ada.rlp(['org', 'create', 'Büro 東京']);
    const [own, office] = await organizations(ada);
    assert.deepEqual(made, { code: 0, stdout: `${office?.id}\n`, stderr: '' });
    assert.deepEqual(rows(await ada.rlp(['org', 'ls'])), [
      ['ada', 'owner', own?.id, 'personal'],
      ['Büro 東京', 'owner', office?.id],
    ]);
    assert.equal((await ada.rlp(['org', 'rename', 'Büro 東京', 'Office'])).code, 0);
    assert.equal((await ada.rlp(['org', 'rm', 'Office'])).stdout, `${office?.id}\n`);
    assert.equal((await organizations(ada)).length, 1);
  });

  test('reports what is unknown, personal or not owned by the caller, and processes the rest', async () => {
    await using ada = await accounts.signedIn('ada');
    await using bob = await accounts.signedIn('bob');
    const shared = await makeOrg(bob, 'shared');
    await addMember(shared, bob, ada);
    const gone = await makeOrg(ada, 'gone');
    const outcome = await ada.rlp(['org', 'rm', 'nobody', 'ada', shared, 'gone', '--json']);
    assert.equal(outcome.code, 4);
    assert.deepEqual(list(outcome), [
      { org: 'nobody', error: 'no organization has the name or id "nobody": rlp org ls lists them' },
      { org: 'ada', error: 'a personal organization cannot be deleted: it belongs to its user' },
      {
        org: shared,
        error: 'only an owner of organization "shared" may do this, and you are a member',
      },
      { org: 'gone', id: gone, status: 'deleted' },
    ]);
  });

  test('an ambiguous name needs an id', async () => {
    await using ada = await accounts.signedIn('ada');
    const [a, b] = [await makeOrg(ada, 'twins'), await makeOrg(ada, 'twins')];
    const outcome = await ada.rlp(['org', 'members', 'twins']);
    assert.equal(outcome.code, 2);
    assert.match(outcome.stderr, new RegExp(`2 organizations have the name "twins", use an id: ${a}, ${b}`));
    assert.equal((await ada.rlp(['org', 'members', a.toUpperCase()])).code, 0);
  });

  test('members: listed, and removed by address or id', async () => {
    await using ada = await accounts.signedIn('ada');
    await using bob = await accounts.signedIn('bob');
    await using eve = await accounts.signedIn('eve');
    const shared = await makeOrg(ada, 'shared');
    for (const one of [bob, eve]) await addMember(shared, ada, one);
    // An issuer may send any name; this one refuses such a name.
    await accounts.world.database.pool.query('update users set name = $2 where id = $1', [
      eve.user.id,
      'eve\u001b[2J',
    ]);
    const all = await ada.rlp(['org', 'members', 'shared']);
    assert.deepEqual(rows(all)[1], [bob.user.email, 'bob', 'member', bob.user.id]);
    assert.match(all.stdout, /eve\?\[2J/);
    assert.ok(!all.stdout.includes('\u001b'));
    const removed = await ada.rlp([
      'org',
      'remove-member',
      '--org',
      'shared',
      bob.user.email.toUpperCase(),
      eve.user.id,
      'nobody',
    ]);
    assert.deepEqual([removed.code, removed.stdout], [4, `${bob.user.id}\n${eve.user.id}\n`]);
    const last = await ada.rlp(['org', 'remove-member', '--org', 'shared', ada.user.email]);
    assert.equal(last.code, 1);
    assert.match(last.stderr, /^rlp: the last owner of an organization cannot be removed/);
  });

  test('quotas: what may be used and what is, for members only', async () => {
    await using ada = await accounts.signedIn('ada');
    await using grace = await accounts.signedIn('grace');
    const org = await makeOrg(ada, 'quotas');
    const outcome = await ada.rlp(['org', 'quotas', org]);
    assert.equal(outcome.code, 0, outcome.stderr);
    assert.deepEqual(rows(outcome)[0], ['sandboxes', '0', '20000']);
    assert.equal((await grace.rlp(['org', 'quotas', org])).code, 4);
  });

  test('audit: newest first, as much as is asked for', async () => {
    await using ada = await accounts.signedIn('ada');
    const projects: string[] = [];
    for (const name of ['a', 'b', 'c', 'd', 'e']) projects.push(await makeProject(ada, name));
    await using relay = await startRelay({ url: accounts.url });
    await ada.remember({
      current: relay.url,
      services: { [relay.url]: accounts.sessionOf(ada).services[accounts.url] },
    });
    relay.pageSize = 2;
    assert.deepEqual(
      rows(await ada.rlp(['org', 'audit', '--limit', '3'])).map((row) => row.slice(1)),
      projects
        .slice(-3)
        .reverse()
        .map((id) => [ada.user.email, 'project.create', `project ${id}`, '127.0.0.1', 'done']),
    );
    assert.equal(relay.calls.filter((call) => call.endsWith('/audit')).length, 2);
    assert.equal(list(await ada.rlp(['org', 'audit', '--json'])).length, 5);
    assert.equal((await ada.rlp(['org', 'audit', '--limit', '0'])).code, 2);
  });
});

describe('rlp project', () => {
  test('makes, lists and deletes projects in an organization', async () => {
    await using ada = await accounts.signedIn('ada');
    const office = await makeOrg(ada, 'office');
    const projects = async () => (await ada.call('GET', `/orgs/${office}/projects`)).body.projects;
    const made = await ada.rlp(['project', 'create', 'web', '--org', 'office']);
    assert.deepEqual(made, { code: 0, stdout: `${(await projects())[0].id}\n`, stderr: '' });
    assert.equal((await ada.rlp(['project', 'create', 'mine'])).code, 0);
    assert.deepEqual(
      rows(await ada.rlp(['project', 'ls'])).map((row) => row.slice(0, 2)),
      [
        ['mine', 'ada'],
        ['web', 'office'],
      ],
    );
    assert.equal(rows(await ada.rlp(['project', 'ls', '--org', 'office'])).length, 1);
    const twice = await ada.rlp(['project', 'create', 'web', '--org', 'office']);
    assert.deepEqual(
      [twice.code, twice.stderr],
      [1, 'rlp: the organization already has a project named "web"\n'],
    );
    assert.equal((await ada.rlp(['project', 'rm', 'web', 'nobody'])).code, 4);
    assert.deepEqual(await projects(), []);
  });

  test('use: creates a key for this machine, which commands on sandboxes then use', async () => {
    await using ada = await accounts.signedIn('ada');
    const web = await makeProject(ada, 'web');
    await grant((await personal(ada)).id);
    const used = await ada.rlp(['project', 'use', 'web']);
    assert.deepEqual(used, { code: 0, stdout: `${web}\n`, stderr: '' });
    assert.match((await keysOf(ada, web))[0]?.name ?? '', /^rlp on /);
    assert.equal((await ada.rlp(['run', 'busybox', '--name', 'one'])).code, 0);
    assert.match((await ada.rlp(['ps'])).stdout, /one/);
    assert.match((await ada.rlp(['whoami'])).stdout, new RegExp(`\nproject web \\(${web}\\)\n`));
    assert.equal(rows(await ada.rlp(['project', 'ls']))[0]?.[3], 'in use');
    assert.equal((await ada.rlp(['ps', '--api-key', 'rlp_wrong'])).code, 3, 'a key that is given wins');
    assert.equal((await ada.rlp(['ps'], { env: { RELEAP_API_KEY: 'rlp_wrong' } })).code, 3);
    assert.equal(
      (await ada.rlp(['ps', '--url', 'http://127.0.0.1:2'])).code,
      3,
      'it is sent to no other service',
    );
  });

  test('use again: the key stays while it works, and another project has one of its own', async () => {
    await using ada = await accounts.signedIn('ada');
    const [web, db] = [await makeProject(ada, 'web'), await makeProject(ada, 'db')];
    for (const name of ['web', 'db', 'web']) assert.equal((await ada.rlp(['project', 'use', name])).code, 0);
    const all = async () => [...(await keysOf(ada, web)), ...(await keysOf(ada, db))];
    assert.equal((await all()).length, 2);
    for (const { id } of await all()) assert.equal((await ada.call('DELETE', `/api-keys/${id}`)).status, 200);
    assert.equal((await ada.rlp(['ps'])).code, 3);
    assert.equal((await ada.rlp(['project', 'use', 'web'])).code, 0);
    assert.equal((await all()).length, 3);
    assert.equal((await ada.rlp(['ps'])).code, 0);
    assert.equal(await ada.fileMode(), 0o600);
  });

  test('wins over the server of this machine, until none is in use', async () => {
    await using ada = await accounts.signedIn('ada');
    await using folder = await home(null, {
      'bootstrap.json': JSON.stringify({ base_url: 'http://127.0.0.1:2', api_key: 'rlp_local' }),
    });
    const env = { RELEAP_HOME: folder.path };
    await makeProject(ada, 'web');
    assert.match((await ada.rlp(['ps'], { env })).stderr, /cannot reach/, 'signed in, but none in use');
    assert.equal((await ada.rlp(['project', 'use', 'web'], { env })).code, 0);
    assert.equal((await ada.rlp(['ps'], { env })).code, 0);
    assert.equal((await ada.rlp(['project', 'use', '--none'], { env })).code, 0);
    assert.match((await ada.rlp(['ps'], { env })).stderr, /cannot reach/);
    for (const args of [[], ['web', '--none']])
      assert.equal((await ada.rlp(['project', 'use', ...args], { env })).code, 2);
  });

  test('rm of the one in use: it is not used any more', async () => {
    await using ada = await accounts.signedIn('ada');
    await makeProject(ada, 'web');
    assert.equal((await ada.rlp(['project', 'use', 'web'])).code, 0);
    assert.equal((await ada.rlp(['project', 'rm', 'web'])).code, 0);
    const session = (await ada.credentials()).services[accounts.url];
    assert.deepEqual([session?.project, session?.keys], [undefined, {}]);
  });

  test('use changes nothing when the service fails', async () => {
    await using ada = await accounts.signedIn('ada');
    const web = await makeProject(ada, 'web');
    await using relay = await startRelay({ url: accounts.url });
    relay.answers.set(`POST /projects/${web}/api-keys`, (_request, response) =>
      sendJson(response, 409, { error: 'the project has as many keys as it may' }),
    );
    await ada.remember({
      current: relay.url,
      services: { [relay.url]: accounts.sessionOf(ada).services[accounts.url] },
    });
    const before = await ada.credentials();
    const outcome = await ada.rlp(['project', 'use', 'web']);
    assert.deepEqual([outcome.code, outcome.stderr], [1, 'rlp: the project has as many keys as it may\n']);
    assert.deepEqual(await ada.credentials(), before);
  });
});

describe('rlp key', () => {
  test('makes one and shows it once, lists and revokes them', async () => {
    await using ada = await accounts.signedIn('ada');
    const web = await makeProject(ada, 'web');
    const made = await ada.rlp(['key', 'create', 'ci']);
    const [key] = await keysOf(ada, web);
    assert.deepEqual([made.code, made.stderr], [0, '']);
    assert.match(made.stdout, /^rlp_\S+\n$/);
    const token = made.stdout.trim();
    assert.equal((await rlpHere({ url: accounts.url, key: token }, ['ps'])).code, 0, 'it works');
    assert.equal((await ada.rlp(['key', 'create'])).code, 0, 'the service names it');
    const all = await ada.rlp(['key', 'ls']);
    assert.deepEqual(
      rows(all).map((row) => row[0]),
      ['default', 'ci'],
    );
    assert.ok(!all.stdout.includes(token));
    const revoked = await ada.rlp(['key', 'rm', String(key?.id), 'nobody']);
    assert.deepEqual([revoked.code, revoked.stdout], [4, `${key?.id}\n`]);
    assert.equal(rows(await ada.rlp(['key', 'ls'])).length, 1);
    assert.equal(rows(await ada.rlp(['key', 'ls', '--revoked']))[1]?.[5], 'revoked');
    assert.equal((await rlpHere({ url: accounts.url, key: token }, ['ps'])).code, 3);
  });

  test('which project: the one in use, the only one, or an explicit one', async () => {
    await using ada = await accounts.signedIn('ada');
    assert.match((await ada.rlp(['key', 'ls'])).stderr, /there is no project yet/);
    const web = await makeProject(ada, 'web');
    const db = await makeProject(ada, 'db');
    const open = await ada.rlp(['key', 'create']);
    assert.equal(open.code, 2);
    assert.match(open.stderr, /say which project, with --project or rlp project use/);
    assert.equal((await ada.rlp(['key', 'create', '--project', 'db'])).code, 0);
    assert.equal((await ada.rlp(['project', 'use', 'web'])).code, 0);
    assert.equal((await ada.rlp(['key', 'create', 'ci'])).code, 0);
    assert.deepEqual([(await keysOf(ada, web)).length, (await keysOf(ada, db)).length], [2, 1]);
    assert.equal((await ada.rlp(['key', 'ls', '--project', 'nobody'])).code, 4);
  });
});

describe('rlp invite', () => {
  test('from the invitation to the membership', async () => {
    await using ada = await accounts.signedIn('ada');
    await using bob = await accounts.signedIn('bob');
    const office = await makeOrg(ada, 'office');
    const invited = await ada.rlp(['invite', 'create', bob.user.email, '--org', 'office']);
    const { invitations } = (await ada.call('GET', `/orgs/${office}/invitations`)).body;
    assert.deepEqual(invited, { code: 0, stdout: `${invitations[0].id}\n`, stderr: '' });
    assert.deepEqual(rows(await ada.rlp(['invite', 'ls', '--org', 'office'])), [
      [bob.user.email, 'member', invitations[0].id],
    ]);
    const [mine] = rows(await bob.rlp(['invite', 'ls']));
    assert.deepEqual(mine?.slice(0, 2), ['office', 'member']);
    assert.deepEqual(await bob.rlp(['invite', 'accept', String(mine?.[2])]), {
      code: 0,
      stdout: `${office}\n`,
      stderr: '',
    });
    assert.equal((await bob.rlp(['invite', 'accept', String(mine?.[2])])).code, 4);
    assert.equal((await bob.rlp(['project', 'create', 'his', '--org', 'office'])).code, 0);
    assert.equal((await bob.rlp(['invite', 'create', 'eve@example.com', '--org', 'office'])).code, 1);
  });

  test('a role that is none, a personal organization, and one taken back', async () => {
    await using ada = await accounts.signedIn('ada');
    assert.equal((await ada.rlp(['invite', 'create', 'bob@example.com', '--role', 'king'])).code, 2);
    const own = await ada.rlp(['invite', 'create', 'bob@example.com']);
    assert.deepEqual(
      [own.code, own.stderr],
      [1, 'rlp: a personal organization cannot have other members: create another organization\n'],
    );
    const office = await makeOrg(ada, 'office');
    const args = ['--org', 'office', '--role', 'owner', '--json'];
    const made = JSON.parse((await ada.rlp(['invite', 'create', 'bob@example.com', ...args])).stdout) as {
      id: string;
      role: string;
    };
    assert.equal(made.role, 'owner');
    assert.equal((await ada.rlp(['invite', 'rm', made.id, '--org', 'office'])).code, 0);
    assert.deepEqual((await ada.call('GET', `/orgs/${office}/invitations`)).body.invitations, []);
  });
});

describe('rlp credits', () => {
  test('the balance, and what has changed it', async () => {
    await using ada = await accounts.signedIn('ada');
    const { id } = await personal(ada);
    const enter = (columns: string, values: unknown[]) =>
      accounts.world.database.pool.query(
        `insert into credit_ledger (org_id, ${columns}) values (${['', ...values].map((_, n) => `$${n + 1}`).join(', ')})`,
        [id, ...values],
      );
    await enter('amount, kind, note, created_at', ['12500000001', 'grant', 'hi', '2020-01-01T00:00:00Z']);
    await enter('amount, kind, sandbox_id, region, period_from, period_to', [
      '-1',
      'usage',
      newUuid(),
      'local',
      '2020-01-01T00:00:00Z',
      '2020-01-01T00:00:01Z',
    ]);
    const { code, stdout } = await ada.rlp(['credits']);
    assert.equal(code, 0);
    assert.match(
      stdout,
      /^balance 12\.5\nsandboxes are deleted at -5\n\nAGE .*\n\d+ s +-0\.000000001 +usage +local-\w+ /,
    );
    assert.match(stdout, /d +12\.500000001 +grant +- +hi\n$/);
    const one = JSON.parse((await ada.rlp(['credits', 'ada', '--limit', '1', '--json'])).stdout) as {
      ledger: unknown[];
    };
    assert.equal(one.ledger.length, 1);
    assert.equal((await ada.rlp(['credits', 'nobody'])).code, 4);
  });
});

describe('rlp admin grant', () => {
  const ORG = '11111111-1111-4111-8111-111111111111';

  test('gives credits with the token of the service, and prints the balance', async () => {
    await using ada = await accounts.signedIn('ada');
    const org = (await personal(ada)).id;
    const { world } = accounts;
    await using folder = await home({ url: world.url, internalUrl: world.internalUrl, key: world.call.key });
    const env = { RELEAP_HOME: folder.path };
    const given = await ada.rlp(['admin', 'grant', org, '100', '--note', 'welcome'], { env });
    assert.deepEqual(given, { code: 0, stdout: '100\n', stderr: '' });
    const take = ['admin', 'grant', '--adjustment', '--once', `invoice-${org}`, '--', org, '-5'];
    for (let tries = 0; tries < 2; tries++)
      assert.deepEqual(await ada.rlp(take, { env }), { code: 0, stdout: '95\n', stderr: '' });
    const { ledger } = (await ada.call('GET', `/orgs/${org}/credits`)).body as {
      ledger: { amount: string; kind: string; note: string | null }[];
    };
    assert.deepEqual(
      ledger.map(({ amount, kind, note }) => [amount, kind, note]),
      [
        ['-5', 'adjustment', null],
        ['100', 'grant', 'welcome'],
      ],
    );
  });

  test('refuses an invalid id or amount, and a token that cannot be read', async () => {
    await using ada = await accounts.signedIn('ada');
    await using relay = await startRelay();
    await using folder = await home({ url: relay.url, internalUrl: relay.url, key: 'rlp_any' });
    const env = { RELEAP_HOME: folder.path };
    for (const args of [
      [ORG, 'much'],
      [ORG, '1e9'],
      [ORG, '0.0000000001'],
      [ORG, '5', '--once', 'two words'],
      ['ada', '5'],
      [ORG],
    ])
      assert.equal((await ada.rlp(['admin', 'grant', ...args], { env })).code, 2, args.join(' '));
    const nobody = await ada.rlp(['admin', 'grant', ORG, '5']);
    assert.equal(nobody.code, 3);
    assert.match(nobody.stderr, /operator\.token\. This is for the service's operator/);
    assert.deepEqual(relay.calls, []);
  });
});
