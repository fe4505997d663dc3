"""The outbox's statements, run like those of `SqliteTables` and in the same transactions."""

from __future__ import annotations

import sqlite3

from service.adapters.stores.sqlite_codec import from_us, from_us_or_none, to_us, to_us_or_none
from service.domain.webhook import WebhookEvent
from service.domain.webhook_delivery import Delivery

_COLUMNS = (
    "id, prediction, event, url, created_us, next_us, attempts, delivered, given_up, last_status,"
    " last_error, attempted_us, owner"
)
_NEWEST_FIRST = " ORDER BY created_us DESC, pk DESC LIMIT ?"
DeliveryRow = tuple[str, str, str, str, int, int | None, int, int, int, int, str, int | None, str]
"""The values of `_COLUMNS`."""


def encode_delivery(delivery: Delivery) -> DeliveryRow:
    """Return a delivery as a row."""
    return (
        delivery.id,
        delivery.prediction_id,
        delivery.event.value,
        delivery.url,
        to_us(delivery.created_at),
        to_us_or_none(delivery.next_at),
        delivery.attempts,
        delivery.delivered,
        delivery.given_up,
        delivery.last_status,
        delivery.last_error,
        to_us_or_none(delivery.attempted_at),
        delivery.owner,
    )


def decode_delivery(row: DeliveryRow) -> Delivery:
    """Return the delivery of a row."""
    (id_, prediction, event, url, created_us, next_us) = row[:6]
    (attempts, delivered, given_up, last_status, last_error, attempted_us, owner) = row[6:]
    return Delivery(
        id=id_,
        prediction_id=prediction,
        event=WebhookEvent(event),
        url=url,
        created_at=from_us(created_us),
        next_at=from_us_or_none(next_us),
        attempts=attempts,
        delivered=bool(delivered),
        given_up=bool(given_up),
        last_status=last_status,
        last_error=last_error,
        attempted_at=from_us_or_none(attempted_us),
        owner=owner,
    )


class OutboxTables:
    """All reads and writes of deliveries; used by the connection's thread only."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def insert(self, row: DeliveryRow, body: bytes) -> None:
        """Write a new delivery."""
        cursor = self._db.execute(
            f"INSERT INTO deliveries ({_COLUMNS}) VALUES ({', '.join('?' * len(row))})", row
        )
        self._db.execute("INSERT INTO bodies VALUES (?, ?)", (cursor.lastrowid, body))

    def pending(self, limit: int) -> list[DeliveryRow]:
        """Return at most `limit` unsettled deliveries, those due first first."""
        return self._db.execute(
            f"SELECT {_COLUMNS} FROM deliveries WHERE next_us IS NOT NULL ORDER BY next_us, pk LIMIT ?",
            (limit,),
        ).fetchall()

    def body(self, delivery_id: str) -> bytes | None:
        """Return a delivery's body, or None."""
        row = self._db.execute(
            "SELECT body FROM deliveries JOIN bodies ON delivery = pk WHERE id = ?", (delivery_id,)
        ).fetchone()
        return None if row is None else row[0]

    def update(self, row: DeliveryRow) -> None:
        """Replace what can change of a delivery; an unknown one is ignored."""
        (id_, next_us, changed) = row[0], row[5], row[6:12]
        self._db.execute(
            "UPDATE deliveries SET next_us = ?, attempts = ?, delivered = ?, given_up = ?, last_status = ?,"
            " last_error = ?, attempted_us = ? WHERE id = ?",
            (next_us, *changed, id_),
        )
        if next_us is None:
            self._db.execute(
                "DELETE FROM bodies WHERE delivery = (SELECT pk FROM deliveries WHERE id = ?)", (id_,)
            )

    def of_prediction(self, prediction_id: str, limit: int) -> list[DeliveryRow]:
        """Return at most `limit` deliveries of one prediction, newest first."""
        return self._db.execute(
            f"SELECT {_COLUMNS} FROM deliveries WHERE prediction = ?{_NEWEST_FIRST}",
            (prediction_id, limit),
        ).fetchall()

    def given_up(self, limit: int, owner: str) -> list[DeliveryRow]:
        """Return at most `limit` deliveries that were given up, newest first; "" for everybody's."""
        whose = " AND owner = ?" if owner else ""
        args = (owner, limit) if owner else (limit,)
        return self._db.execute(
            f"SELECT {_COLUMNS} FROM deliveries WHERE given_up = 1{whose}{_NEWEST_FIRST}", args
        ).fetchall()

    def expire(self, created_before_us: int, limit: int) -> int:
        """Remove at most `limit` settled deliveries; return how many."""
        return self._db.execute(
            "DELETE FROM deliveries WHERE pk IN (SELECT pk FROM deliveries WHERE next_us IS NULL"
            " AND created_us < ? LIMIT ?)",
            (created_before_us, limit),
        ).rowcount
