"""English sentences with their French: written by hand in parts that go together, so that there are some hundreds."""

from __future__ import annotations

import random

WHO = (
    ("Tom", "Tom"), ("my brother", "mon frère"), ("my sister", "ma sœur"), ("her father", "son père"), ("she", "elle"),
    ("he", "il"), ("the teacher", "le professeur"), ("our neighbor", "notre voisin"),
)  # fmt: skip
DOES = (
    ("is reading a book in the garden", "lit un livre dans le jardin"),
    ("wants to buy a new car", "veut acheter une nouvelle voiture"),
    ("does not like coffee", "n'aime pas le café"),
    ("works in a big hospital", "travaille dans un grand hôpital"),
    ("is waiting for the bus", "attend le bus"),
    ("speaks French very well", "parle très bien français"),
    ("lives in a small house near the station", "vit dans une petite maison près de la gare"),
    ("has two children and a dog", "a deux enfants et un chien"),
    ("knows how to play the piano", "sait jouer du piano"),
    ("has to go home before dinner", "doit rentrer à la maison avant le dîner"),
    ("often forgets to close the door", "oublie souvent de fermer la porte"),
    ("bought a ticket for the train", "a acheté un billet pour le train"),
    ("will come back tomorrow morning", "reviendra demain matin"),
    ("has never been to Japan", "n'est jamais allé au Japon"),
    ("is afraid of the dark", "a peur du noir"),
    ("is as tall as I am", "est aussi grand que moi"),
)
SAID = (
    ("{}.", "{}."),
    ("I think {}.", "Je pense que {}."),
    ("I know that {}.", "Je sais que {}."),
    ("Everybody says that {}.", "Tout le monde dit que {}."),
    ("I hope that {}.", "J'espère que {}."),
)
FEMININE = {"allé": "allée", "grand que": "grande que"}


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """So many different ones, drawn by the seed."""
    every = [(said, who, does) for said in SAID for who in WHO for does in DOES]
    return [_pair(*parts) for parts in random.Random(seed).sample(every, count)]


def _pair(said: tuple[str, str], who: tuple[str, str], does: tuple[str, str]) -> tuple[str, str]:
    action = does[1]
    if who[1] in ("elle", "ma sœur"):
        for masculine, feminine in FEMININE.items():
            action = action.replace(masculine, feminine)
    english = said[0].format(f"{who[0]} {does[0]}")
    french = said[1].format(f"{who[1]} {action}").replace("que il ", "qu'il ").replace("que elle ", "qu'elle ")
    return english[0].upper() + english[1:], french[0].upper() + french[1:]
