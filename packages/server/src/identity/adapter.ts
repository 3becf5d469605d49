import type { Adapter, AdapterPayload } from 'oidc-provider';

interface Entry {
  payload: AdapterPayload;
  until: number;
}

/** Of each kind. The oldest are evicted first. */
const MAX_ENTRIES = 5_000;

/** Sign-in state of the provider: in memory, and bounded. After a restart users sign in again. */
export function createMemory(): (kind: string) => Adapter {
  const kinds = new Map<string, Map<string, Entry>>();
  const entriesOf = (kind: string): Map<string, Entry> => {
    const known = kinds.get(kind) ?? new Map<string, Entry>();
    kinds.set(kind, known);
    return known;
  };
  return (kind) => {
    const entries = entriesOf(kind);
    const live = (entry: Entry | undefined): AdapterPayload | undefined =>
      entry !== undefined && entry.until > Date.now() ? entry.payload : undefined;
    const findBy = async (field: 'uid' | 'userCode', value: string): Promise<AdapterPayload | undefined> => {
      for (const entry of entries.values()) {
        if (entry.payload[field] === value) return live(entry);
      }
      return undefined;
    };
    return {
      async upsert(id, payload, expiresIn = 0) {
        entries.delete(id);
        entries.set(id, { payload, until: Date.now() + (expiresIn > 0 ? expiresIn * 1000 : Infinity) });
        for (const [old, entry] of entries) {
          if (entries.size <= MAX_ENTRIES && entry.until > Date.now()) break;
          entries.delete(old);
        }
      },
      find: async (id) => live(entries.get(id)),
      findByUserCode: (code) => findBy('userCode', code),
      findByUid: (uid) => findBy('uid', uid),
      async consume(id) {
        const entry = entries.get(id);
        if (entry !== undefined) entry.payload.consumed = Math.floor(Date.now() / 1000);
      },
      async destroy(id) {
        entries.delete(id);
      },
      async revokeByGrantId(grantId) {
        for (const [id, { payload }] of entries) if (payload.grantId === grantId) entries.delete(id);
      },
    };
  };
}
