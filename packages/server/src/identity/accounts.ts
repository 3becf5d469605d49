import { createHash } from 'node:crypto';
import { emailKey } from '@releap/contract';
import type { Account } from 'oidc-provider';

export interface Person {
  email: string;
  name: string;
}

export interface Accounts {
  /** The account of an address; the same address is the same account, also after a restart. */
  signIn(person: Person): string;
  find(id: string): (Account & { person: Person }) | undefined;
}

const MAX_ACCOUNTS = 5_000;

export function createAccounts(): Accounts {
  const known = new Map<string, Person>();
  return {
    signIn(person) {
      const id = createHash('sha256').update(emailKey(person.email)).digest('hex').slice(0, 32);
      known.delete(id);
      known.set(id, person);
      for (const old of known.keys()) {
        if (known.size <= MAX_ACCOUNTS) break;
        known.delete(old);
      }
      return id;
    },
    find(id) {
      const person = known.get(id);
      if (person === undefined) return undefined;
      return {
        accountId: id,
        person,
        claims: async () => ({ sub: id, email: person.email, email_verified: true, name: person.name }),
      };
    },
  };
}
