/**
 * Random walks of management calls by five users, beside a model of who belongs where. What a call answers, and what
 * lists show, must be what the model says: nothing more is shown and nothing else is changed.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import { startSignedInWorld, type Person } from '@releap/testing/issuer';
import { caller, type Answer } from '@releap/testing/world';
import { propertyRuns } from '@releap/testing/repetitions';

interface ModelKey {
  id: string;
  name: string;
  token: string;
  revoked: boolean;
}
interface ModelProject {
  id: string;
  name: string;
  deleted: boolean;
  keys: ModelKey[];
}
interface ModelOrg {
  id: string;
  name: string;
  personal: boolean;
  deleted: boolean;
  members: Map<number, 'owner' | 'member'>;
  invitations: { id: string; to: number; role: 'owner' | 'member'; pending: boolean }[];
  projects: ModelProject[];
  audits: number;
}

const USERS = 5;
const world = await startSignedInWorld();

/** Numbers choose among what there is at the time. */
const step = fc.record({
  action: fc.constantFrom(
    'createOrg',
    'renameOrg',
    'deleteOrg',
    'invite',
    'invite',
    'accept',
    'accept',
    'accept',
    'revokeInvitation',
    'removeMember',
    'createProject',
    'createProject',
    'deleteProject',
    'mint',
    'mint',
    'revokeKey',
    'useKey',
  ),
  who: fc.nat(USERS - 1),
  a: fc.nat(1000),
  b: fc.nat(1000),
  owner: fc.boolean(),
});
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

let walks = 0;

class Walk {
  readonly people: Person[];
  readonly orgs: ModelOrg[] = [];
  readonly prefix: string;

  constructor(people: Person[], prefix: string) {
    this.people = people;
    this.prefix = prefix;
  }

  pick<T>(list: readonly T[], n: number): T | undefined {
    return list.length === 0 ? undefined : list[n % list.length];
  }
  person(who: number): Person {
    const person = this.people[who];
    assert.ok(person !== undefined);
    return person;
  }

  /** The response to a caller who is no member, and to any caller of a deleted one. */
  roleIn(org: ModelOrg, who: number): 'owner' | 'member' | undefined {
    return org.deleted ? undefined : org.members.get(who);
  }

  /** Compares the status with the model's (the first refusal that holds) and says whether the call was let through. */
  expect(answer: Answer, refusals: [status: number, holds: boolean][]): boolean {
    const [status] = refusals.find(([, holds]) => holds) ?? [200];
    assert.equal(answer.status, status, answer.text);
    return answer.status === 200;
  }

  async take({ action, who, a, b, owner }: Step): Promise<void> {
    const me = this.person(who);
    const org = this.pick(this.orgs, a);
    const project = this.pick(org?.projects ?? [], b);
    const role = org && this.roleIn(org, who);
    const noOrg = role === undefined;
    const noOwner = role === 'member';
    // A member's attempt at what is an owner's is written down too.
    const audited = (denied: boolean): void => {
      if (org !== undefined && denied) org.audits++;
    };
    if (action === 'createOrg') {
      const answer = await me('POST', '/orgs', { name: `${this.prefix} ${a}` });
      assert.equal(answer.status, 200);
      this.orgs.push({
        id: answer.body.id,
        name: answer.body.name,
        personal: false,
        deleted: false,
        members: new Map([[who, 'owner']]),
        invitations: [],
        projects: [],
        audits: 1,
      });
      return;
    }
    if (org === undefined) return;
    switch (action) {
      case 'renameOrg': {
        const name = `${this.prefix} renamed ${b}`;
        const done = this.expect(await me('PATCH', `/orgs/${org.id}`, { name }), [
          [404, noOrg],
          [403, noOwner],
        ]);
        if (done) org.name = name;
        audited(done || noOwner);
        return;
      }
      case 'deleteOrg': {
        const answer = await me('DELETE', `/orgs/${org.id}`);
        const done = this.expect(answer, [
          [404, noOrg],
          [403, noOwner],
          [409, org.personal],
        ]);
        audited(noOwner);
        if (!done) return;
        org.deleted = true;
        for (const one of org.projects) this.#drop(one);
        return;
      }
      case 'invite': {
        const to = b % USERS;
        const wanted = owner ? 'owner' : 'member';
        const answer = await me('POST', `/orgs/${org.id}/invitations`, {
          email: this.person(to).email,
          role: wanted,
        });
        const done = this.expect(answer, [
          [404, noOrg],
          [403, noOwner],
          [409, org.personal],
        ]);
        audited(done || noOwner);
        if (!done) return;
        const pending = org.invitations.find((one) => one.pending && one.to === to);
        if (pending === undefined)
          org.invitations.push({ id: answer.body.id, to, role: wanted, pending: true });
        else {
          assert.equal(answer.body.id, pending.id);
          pending.role = wanted;
        }
        return;
      }
      case 'accept': {
        const all = this.orgs.flatMap((one) => one.invitations.map((invitation) => ({ one, invitation })));
        // Half of the time one's own, or hardly any would be accepted.
        const mine = owner ? all.filter(({ invitation }) => invitation.to === who) : all;
        const chosen = this.pick(mine, b);
        if (chosen === undefined) return;
        const { one, invitation } = chosen;
        const gone = one.deleted || !invitation.pending;
        const answer = await me('POST', `/invitations/${invitation.id}/accept`);
        const done = this.expect(answer, [
          [404, gone],
          [403, invitation.to !== who],
        ]);
        if (!done) return;
        invitation.pending = false;
        one.members.set(who, one.members.get(who) === 'owner' ? 'owner' : invitation.role);
        one.audits++;
        assert.deepEqual(answer.body, { org_id: one.id, role: one.members.get(who) });
        return;
      }
      case 'revokeInvitation': {
        const invitation = this.pick(org.invitations, b);
        if (invitation === undefined) return;
        const answer = await me('DELETE', `/orgs/${org.id}/invitations/${invitation.id}`);
        const done = this.expect(answer, [
          [404, noOrg || (!noOwner && !invitation.pending)],
          [403, noOwner],
        ]);
        audited(done || noOwner);
        if (done) invitation.pending = false;
        return;
      }
      case 'removeMember': {
        const target = b % USERS;
        const answer = await me('DELETE', `/orgs/${org.id}/members/${this.person(target).id}`);
        const owners = [...org.members.values()].filter((one) => one === 'owner').length;
        const their = org.members.get(target);
        const done = this.expect(answer, [
          [404, noOrg || (!noOwner && their === undefined)],
          [403, noOwner],
          [409, their === 'owner' && owners === 1],
        ]);
        audited(done || noOwner);
        if (done) org.members.delete(target);
        return;
      }
      case 'createProject': {
        const name = `project ${b % 4}`;
        const answer = await me('POST', `/orgs/${org.id}/projects`, { name });
        const taken = org.projects.some((one) => !one.deleted && one.name === name);
        if (
          !this.expect(answer, [
            [404, noOrg],
            [409, taken],
          ])
        )
          return;
        org.projects.push({ id: answer.body.id, name, deleted: false, keys: [] });
        org.audits++;
        return;
      }
      case 'deleteProject': {
        if (project === undefined) return;
        const answer = await me('DELETE', `/projects/${project.id}`);
        if (!this.expect(answer, [[404, noOrg || project.deleted]])) return;
        this.#drop(project);
        org.audits++;
        return;
      }
      case 'mint': {
        if (project === undefined) return;
        const name = owner ? 'default' : 'other';
        const answer = await me('POST', `/projects/${project.id}/api-keys`, { name });
        if (!this.expect(answer, [[404, noOrg || project.deleted]])) return;
        if (owner) for (const key of project.keys) key.revoked ||= key.name === 'default';
        project.keys.push({ id: answer.body.id, name, token: answer.body.token, revoked: false });
        org.audits++;
        return;
      }
      case 'revokeKey': {
        const key = this.pick(project?.keys ?? [], a + b);
        if (key === undefined || project === undefined) return;
        const answer = await me('DELETE', `/api-keys/${key.id}`);
        if (!this.expect(answer, [[404, noOrg || project.deleted]])) return;
        if (!key.revoked) org.audits++;
        key.revoked = true;
        return;
      }
      default: {
        const key = this.pick(project?.keys ?? [], a + b);
        if (key === undefined) return;
        const answer = await caller(() => world.url, key.token, '')('GET', '/vms');
        assert.equal(answer.status, key.revoked ? 401 : 200, answer.text);
      }
    }
  }

  #drop(project: ModelProject): void {
    project.deleted = true;
    for (const key of project.keys) key.revoked = true;
  }

  /** All that each caller can see is what the model has, and no more. */
  async compare(): Promise<void> {
    for (const [who, me] of this.people.entries()) {
      const shown = (
        (await me('GET', '/orgs')).body.organizations as { id: string; personal: boolean }[]
      ).filter((one) => !one.personal && this.orgs.some((org) => org.id === one.id));
      const mine = this.orgs.filter((org) => this.roleIn(org, who) !== undefined);
      assert.deepEqual(
        shown,
        mine.map((org) => ({ id: org.id, name: org.name, personal: false, role: org.members.get(who) })),
      );
      const invited = ((await me('GET', '/invitations')).body.invitations as { id: string }[]).map(
        ({ id }) => id,
      );
      const expected = this.orgs.flatMap((org) =>
        org.deleted ? [] : org.invitations.filter((one) => one.pending && one.to === who).map(({ id }) => id),
      );
      const ours = new Set(this.orgs.flatMap((org) => org.invitations.map(({ id }) => id)));
      assert.deepEqual(invited.filter((id) => ours.has(id)).sort(), expected.sort());
      for (const org of this.orgs) await this.#compareOrg(me, who, org);
    }
  }

  async #compareOrg(me: Person, who: number, org: ModelOrg): Promise<void> {
    const role = this.roleIn(org, who);
    const [members, invitations, projects, audit] = (await Promise.all(
      ['members', 'invitations', 'projects', 'audit?limit=200'].map((what) =>
        me('GET', `/orgs/${org.id}/${what}`),
      ),
    )) as [Answer, Answer, Answer, Answer];
    if (role === undefined) {
      for (const answer of [members, invitations, projects, audit])
        assert.equal(answer.status, 404, answer.text);
      for (const project of org.projects)
        assert.equal((await me('GET', `/projects/${project.id}/api-keys`)).status, 404);
      return;
    }
    const seen = new Map(
      (members.body.members as { user_id: string; role: string }[]).map((one) => [one.user_id, one.role]),
    );
    assert.deepEqual(
      Object.fromEntries(seen),
      Object.fromEntries([...org.members].map(([at, its]) => [this.person(at).id, its])),
    );
    const live = org.projects.filter((one) => !one.deleted);
    assert.deepEqual(
      projects.body.projects,
      live.map(({ id, name }) => ({ id, name })),
    );
    for (const project of live) {
      const keys = (await me('GET', `/projects/${project.id}/api-keys`)).body.api_keys as { id: string }[];
      const working = project.keys.filter((key) => !key.revoked).map(({ id }) => id);
      assert.deepEqual(keys.map(({ id }) => id).sort(), working.sort());
    }
    if (role === 'member') {
      assert.equal(invitations.status, 403);
      assert.equal(audit.status, 403);
      return;
    }
    const pending = org.invitations.filter((one) => one.pending).map(({ id }) => id);
    const listed = (invitations.body.invitations as { id: string }[]).map(({ id }) => id);
    assert.deepEqual(listed.sort(), pending.sort());
    assert.equal(audit.body.entries.length, Math.min(200, org.audits));
  }
}

test('a random walk of management calls never shows or changes what a role may not', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 30, maxLength: 60 }), async (steps) => {
      const number = walks++;
      const people = await Promise.all(
        Array.from({ length: USERS }, (_, n) => world.as(`walker-${number}-${n}`)),
      );
      const walk = new Walk(people, `walk ${number}`);
      for (const who of [0, 1, 2]) await walk.take({ action: 'createOrg', who, a: who, b: 0, owner: true });
      for (const one of steps) await walk.take(one);
      await walk.compare();
    }),
    // To shrink a walk would take minutes; the seed that is told repeats it.
    { numRuns: propertyRuns(5), endOnFailure: true },
  );
});
