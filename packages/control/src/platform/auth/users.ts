import { newUuid } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';

export interface UserRow {
  id: string;
  email: string;
  email_verified: boolean;
  name: string;
}

/** A user's claims; undefined for those that the token does not have. */
export interface Person {
  issuer: string;
  subject: string;
  email: string | undefined;
  emailVerified: boolean;
  name: string | undefined;
}

const FIND = statement<UserRow>(
  'user-find',
  'select id, email, email_verified, name from users where issuer = $1 and subject = $2',
);

const REFRESH = statement<UserRow>(
  'user-refresh',
  `update users set email = $2, email_verified = $3, name = $4, updated_at = now() where id = $1
   returning id, email, email_verified, name`,
);

/**
 * User, personal organization and membership in one statement: of concurrent first requests one inserts them, and the
 * others find them. $1 user, $2 issuer, $3 subject, $4 email, $5 verified, $6 name, $7 organization, $8 its name
 */
const MAKE = statement<UserRow>(
  'user-make',
  `with made as (
     insert into users (id, issuer, subject, email, email_verified, name) values ($1, $2, $3, $4, $5, $6)
     on conflict (issuer, subject) do nothing returning id, email, email_verified, name
   ), org as (
     insert into organizations (id, name, personal_of) select $7, $8, id from made returning id
   ), owner as (
     insert into members (org_id, user_id, role) select org.id, made.id, 'owner' from org, made
   )
   select * from made`,
);

/** The user of a token, created on first use; e-mail address and name are updated from the token. */
export async function ensureUser(database: Database, person: Person): Promise<UserRow> {
  const { issuer, subject, emailVerified } = person;
  const known = await queryOne(database.pool, FIND, [issuer, subject]);
  if (known === undefined) {
    const email = person.email ?? '';
    const name = person.name ?? email;
    const orgName = person.name ?? (email.split('@')[0] || 'personal');
    const values = [newUuid(), issuer, subject, email, emailVerified, name, newUuid(), orgName];
    const made =
      (await queryOne(database.pool, MAKE, values)) ??
      (await queryOne(database.pool, FIND, [issuer, subject]));
    if (made === undefined) throw new Error('a user was neither inserted nor found');
    return made;
  }
  const email = person.email ?? known.email;
  const name = person.name ?? known.name;
  // A token without an address does not change the stored one.
  const verified = person.email === undefined ? known.email_verified : emailVerified;
  if (email === known.email && name === known.name && verified === known.email_verified) return known;
  return (await queryOne(database.pool, REFRESH, [known.id, email, verified, name])) ?? known;
}
